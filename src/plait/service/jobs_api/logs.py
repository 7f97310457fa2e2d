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
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from sse_starlette import ServerSentEvent

from plait.core.errors import PlaitError, StoreError
from plait.obs.jsonl import JsonlTail
from plait.service.heavy import Heavy
from plait.store.jobs import JobRow

log = logging.getLogger(__name__)

LOOK_S = 0.25
"""How often it is looked whether a log has grown: once for all who follow it."""
KEY_S = 15.0
"""How often a follower's key is looked at."""


class Watch:
    """Looks at one job's log for everybody who follows it, as long as anybody does."""

    def __init__(self, asked: Callable[[], Awaitable[JobRow]], file: Path, row: JobRow) -> None:
        self._asked, self._file, self.row = asked, file, row
        self.n_following = 0
        self.news = asyncio.Event()
        """Set when there is something new; then there is another one for the next."""
        self.task = asyncio.create_task(self._look(), name=f"log-{row.job_id}")

    async def _look(self) -> None:
        seen: tuple[object, ...] = ()
        while True:
            try:
                row = await self._asked()  # before the file: what is written before the end is seen
                mark = await asyncio.to_thread(_mark, self._file)
            except (PlaitError, OSError) as error:  # nothing can be read now: the next look may
                log.debug("the log of job %s: %s", self.row.job_id, error)
            else:
                found = (row.status, row.reason, mark)
                if found != seen:
                    seen, self.row = found, row
                    news, self.news = self.news, asyncio.Event()
                    news.set()
            await asyncio.sleep(LOOK_S)


class Logs:
    """The logs of all jobs, as they are read. However many read of one tenant's, they look into
    files one after the other: another waits for one of them only."""

    def __init__(self) -> None:
        self._watches: dict[Path, Watch] = {}
        self._turns = Heavy()

    async def lines(
        self,
        asked: Callable[[], Awaitable[JobRow]],
        file: Path,
        row: JobRow,
        *,
        after: int,
        follow: bool,
        may: Callable[[], bool] = lambda: True,
    ) -> AsyncIterator[ServerSentEvent]:
        """Lines behind number ``after``, then the end. ``asked`` gives the job's row, which is
        ``row`` now; ``may`` says whether the reader still may read: else the stream breaks off."""
        tail = JsonlTail(file, after=after)
        async with self._watched(asked, file, row, follow=follow) as watch:
            while may():
                news = None if watch is None else watch.news  # before the row, as that before rows
                row = row if watch is None else watch.row
                async with self._turns.turn(row.tenant_id):
                    told, damaged = await asyncio.to_thread(_lines, tail)
                for number, line in told:
                    yield ServerSentEvent(id=str(number), event="log", data=json.dumps(line))
                if row.status.ended or damaged or news is None:
                    ended = {"status": row.status.value, "reason": row.reason}
                    yield ServerSentEvent(event="end", data=json.dumps(ended))
                    return
                while may() and not news.is_set():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(KEY_S):
                            await news.wait()

    @asynccontextmanager
    async def _watched(
        self, asked: Callable[[], Awaitable[JobRow]], file: Path, row: JobRow, *, follow: bool
    ) -> AsyncIterator[Watch | None]:
        if not follow:
            yield None
            return
        watch = self._watches.get(file)
        if watch is None:
            watch = self._watches[file] = Watch(asked, file, row)
        watch.n_following += 1
        try:
            yield watch
        finally:
            watch.n_following -= 1
            if not watch.n_following:
                del self._watches[file]
                watch.task.cancel()


def _mark(file: Path) -> tuple[int, int]:
    """What changes when a file does."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_ino, found.st_size


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
