"""Child: the main program of a tool process (``python -m plait.envs.tools.child``).

Lines of JSON over the standard pipes. The first line in names the tool, ``{"target":
"module:Class", "config": {…}}``; the first out is ``{"pid": its own}`` or ``{"failed": why}``.
Then a list of requests in gives a list of ``{"ok": reply}`` or ``{"error": why}`` out, in order.

Invariants: what the tool prints goes to stderr, never between the replies; the process ends as soon
as its parent does, even in the middle of a request, and so does all that the tool has started
(``keeper``; Linux); a request that raises fails alone.
"""

import importlib
import json
import os
import queue
import select
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from plait.cluster.keeper import kept
from plait.core.text import told

POLL_S = 1.0
"""How often to look whether the parent still lives; the end of stdin is noticed at once, but some
other child of the parent may have inherited the pipe and keep it open."""


class Tool(Protocol):
    """What ``target`` names: made once with its config, then asked for batches of replies."""

    def answer(self, batch: Sequence[Any]) -> Sequence[Any]:
        """One JSON value per request, in order."""
        ...


def main() -> None:
    """Serve requests until stdin ends."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines, os.getppid()), daemon=True).start()

    def send(value: Any) -> None:
        replies.write(json.dumps(value).encode() + b"\n")
        replies.flush()

    order = json.loads(lines.get())
    try:
        tool = _load(order["target"], order["config"])
    except (
        Exception
    ) as error:  # the recorder: whatever the tool raises becomes the parent's message
        send({"failed": told(error)})
        return
    send({"pid": os.getpid()})
    while True:
        send(_answer(tool, json.loads(lines.get())))


def _load(target: str, config: Any) -> Tool:
    module, _, name = target.partition(":")
    tool: Tool = getattr(importlib.import_module(module), name)(config)
    return tool


def _answer(tool: Tool, batch: list[Any]) -> list[dict[str, Any]]:
    try:
        replies = list(tool.answer(batch))
        if len(replies) != len(batch):
            raise ValueError(f"{len(replies)} replies to {len(batch)} requests")
        return [{"ok": reply} for reply in replies]
    except Exception as error:  # the recorder, as above
        if len(batch) == 1:
            return [{"error": told(error)}]
        return [one for request in batch for one in _answer(tool, [request])]


def _read(lines: "queue.SimpleQueue[bytes]", parent: int) -> None:
    rest = b""
    while True:
        if select.select([0], [], [], POLL_S)[0]:
            data = os.read(0, 1 << 16)
            if not data:
                os._exit(0)
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                lines.put(line)
        elif os.getppid() != parent:
            os._exit(0)


if __name__ == "__main__":
    kept(main)
