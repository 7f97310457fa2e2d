"""Watch: the samples of one request as they come, token by token.

A worker tells what watched samples have drawn every tenth of a second. After a loss or a move it
tells some of it again: what is known is left out. In the rare case that a sample drawn anew comes
out otherwise (sums on other batches round otherwise), what was given out cannot be taken back: the
stream ends in an error.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from plait.core.errors import EngineError
from plait.core.operations import Ranked, Sampled, SampleResult
from plait.runtime import messages as m
from plait.service.openai_api.asked import Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """New tokens of choice ``index``; ``ended`` once there are no more."""

    index: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    topk: tuple[Ranked, ...]
    ended: Sampled | None = None


@dataclass(slots=True)
class _Choice:
    index: int
    tokens: list[int] = field(default_factory=list)
    over: bool = False

    def piece(self, sample: Sampled, first: int, *, ended: bool) -> Piece | None:
        """What of a sample's tokens from number ``first`` on is new."""
        known = self.tokens[first : first + len(sample.tokens)]
        if list(sample.tokens[: len(known)]) != known or (ended and len(known) < len(self.tokens)):
            raise EngineError(
                "a worker was lost while this answer was streamed, and it came out otherwise when "
                "it was drawn again: ask again"
            )
        n = len(self.tokens) - first
        self.tokens.extend(sample.tokens[n:])
        self.over = self.over or ended
        if not ended and not sample.tokens[n:]:
            return None
        return Piece(
            index=self.index,
            tokens=sample.tokens[n:],
            logprobs=sample.logprobs[n:],
            topk=sample.topk[n:],
            ended=sample if ended else None,
        )


async def watch(asked: Asked) -> AsyncGenerator[Piece, None]:
    """Pieces of all choices as they come; each choice ends with one that says so. Closed early, it
    gives up what is under way."""
    news: asyncio.Queue[tuple[int, m.Drawn | SampleResult]] = asyncio.Queue()
    choices = [
        [_Choice(i * work.n + j) for j in range(work.n)] for i, work in enumerate(asked.works)
    ]

    async def draw(i: int) -> None:
        result = await asked.lane.sample(
            asked.served.source, asked.works[i], on_drawn=lambda drawn: news.put_nowait((i, drawn))
        )
        news.put_nowait((i, result))

    tasks = [asyncio.create_task(draw(i)) for i in range(len(asked.works))]
    left = len(tasks)
    try:
        while left:
            i, what = await _next(news, tasks)
            ended = isinstance(what, SampleResult)
            left -= ended
            firsts = (0,) * len(what.samples) if isinstance(what, SampleResult) else what.first
            for choice, sample, first in zip(choices[i], what.samples, firsts, strict=True):
                if first > len(choice.tokens):
                    continue  # told before its beginning: the end will tell it all
                piece = choice.piece(sample, first, ended=ended)
                if piece is not None:
                    yield piece
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _next(
    news: "asyncio.Queue[tuple[int, m.Drawn | SampleResult]]", tasks: list[asyncio.Task[None]]
) -> tuple[int, m.Drawn | SampleResult]:
    """The next news; raises what a sample has failed with."""
    getting = asyncio.ensure_future(news.get())
    try:
        running = [t for t in tasks if not t.done()]
        await asyncio.wait({getting, *running}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        return await getting
    finally:
        getting.cancel()
