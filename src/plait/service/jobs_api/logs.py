"""Logs: a job's steps as lines, as they come.

Each line is a row of the job's ``metrics.jsonl``; its id is the row's number, from 1, so a reader
who lost the connection goes on behind the last one it has seen. (A job that is resumed after a
crash writes the rows of its uncommitted steps anew, under the same numbers.) The last event,
``end``, says how the job ended; a reader that does not follow gets it at once. A line that cannot
be read is told as one, under its number, and the stream ends there; who asks again is given what
follows it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from sse_starlette import ServerSentEvent

from plait.core.errors import StoreError
from plait.obs.jsonl import JsonlTail
from plait.store.jobs import JobRow

LOOK_S = 0.25
"""How often a follower looks for new rows."""


async def lines(
    asked: Callable[[], Awaitable[JobRow]], file: Path, *, after: int, follow: bool
) -> AsyncIterator[ServerSentEvent]:
    """Lines behind number ``after``, then the end. ``asked`` gives the job's row as it stands."""
    tail = JsonlTail(file, after=after)
    while True:
        row = await asked()  # before the file: what is written before the end is read after it
        told, damaged = await asyncio.to_thread(_lines, tail)
        for number, line in told:
            yield ServerSentEvent(id=str(number), event="log", data=json.dumps(line))
        if row.status.ended or damaged or not follow:
            ended = {"status": row.status.value, "reason": row.reason}
            yield ServerSentEvent(event="end", data=json.dumps(ended))
            return
        await asyncio.sleep(LOOK_S)


def _lines(tail: JsonlTail) -> tuple[list[tuple[int, dict[str, Any]]], bool]:
    """New lines; and whether the last of them is an error."""
    out = []
    try:
        for number, row in tail.more():
            out.append((number, {"t": _number(row, "t"), "text": _text(row)}))
    except (StoreError, OSError) as error:
        out.append((tail.last, {"t": 0.0, "text": str(error)}))
        return out, True
    return out, False


def _text(row: dict[str, Any]) -> str:
    step = row.get("step", 0)
    if "eval_n" in row:
        return f"step {step}: held-out reward {_shown(row.get('eval_reward_mean'))}"
    parts = [f"step {step}: reward {_shown(row.get('reward_mean'))}"]
    if row.get("step_s") is not None:
        parts.append(f"{_number(row, 'step_s'):.1f} s")
    if row.get("reward_errors"):
        parts.append(f"{row['reward_errors']} errors")
    return ", ".join(parts)


def _number(row: dict[str, Any], key: str) -> float:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def _shown(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "–"
