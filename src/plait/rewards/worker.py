"""Worker: the main program of a grader process (``python -m plait.rewards.worker FD``).

Requests in and replies out are frames on one socket (number, length, then bytes). Requests are
pickled by plait itself and may hold whatever a dataset's columns hold; replies are JSON, so nothing
that a grader makes is ever unpickled by plait.

Invariants: one request at a time, on the main thread (signal-based timeouts work here); an
exception is a reply, not the end; a reply bears its request's number; a copy of this process that a
grader has forked never answers; the process and all that a grader has started end with its parent,
even in a busy loop (``keeper``; Linux). Deadlines are the parent's: it has this process killed.
"""

import json
import os
import pickle
import socket
import sys
from typing import Any

from plait.cluster.frames import HEADER, frame
from plait.cluster.keeper import kept
from plait.cluster.limits import goes_first, limit_memory
from plait.core.errors import RewardError
from plait.core.text import told
from plait.rewards.calling import Function, call_function, load_function
from plait.rewards.outcome import MAX_ERROR_CHARS, read_outcomes


def main() -> None:
    """Serve until the socket closes."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    functions: dict[str, Function] = {}
    own = os.getpid()
    while (received := _receive(channel)) is not None:
        number, asked = received
        try:
            body = json.dumps(_serve(pickle.loads(asked), functions)).encode()
        except BaseException as error:
            # The recorder: whatever a user's function raises becomes its samples' error. Libraries
            # derive their timeouts from BaseException, and a function may call sys.exit().
            body = json.dumps({"error": told(error)[:MAX_ERROR_CHARS]}).encode()
        if os.getpid() != own:
            # The function has forked, and its child came back here: the channel is not the child's.
            os._exit(1)
        channel.sendall(frame(number, body))


def _serve(request: dict[str, Any], functions: dict[str, Function]) -> dict[str, Any]:
    kind, target = request["kind"], request["target"]
    if kind == "setup":
        sys.path[:0] = [p for p in request["sys_path"] if p not in sys.path]
        goes_first()
        limit_memory(request["memory_bytes"])
        return {}
    if kind == "load":
        functions[target] = load_function(target)
        return {}
    if kind == "call":
        return {"value": functions[target](*request["args"])}
    if kind == "score":
        raw = call_function(
            functions[target], request["prompts"], request["completions"], request["columns"]
        )
        outcomes = read_outcomes(raw, len(request["completions"]), request["name"])
        return {"value": [[o.value, o.error] for o in outcomes]}
    raise RewardError(f"unknown request {kind}")


def _receive(channel: socket.socket) -> tuple[int, bytes] | None:
    """The next request and its number."""
    if (header := _exactly(channel, HEADER.size)) is None:
        return None
    number, n_bytes = HEADER.unpack(header)
    body = _exactly(channel, n_bytes)
    return None if body is None else (number, body)


def _exactly(channel: socket.socket, n_bytes: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < n_bytes:
        part = channel.recv(min(n_bytes - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


if __name__ == "__main__":
    kept(main)
