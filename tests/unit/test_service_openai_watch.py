"""Watch: news of a sample told twice, early, or otherwise than before."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from plait.core.errors import CapacityError, EngineError
from plait.core.ids import OpId
from plait.core.operations import Sampled, SampleResult, StopReason
from plait.runtime import messages as m
from plait.service.openai_api.asked import Asked
from plait.service.openai_api.watch import watch


def some(tokens: str, reason: StopReason = StopReason.ABORT) -> Sampled:
    ids = tuple(map(ord, tokens))
    return Sampled(tokens=ids, logprobs=(-0.5,) * len(ids), stop_reason=reason, version=None)


def news(first: int, tokens: str) -> m.Drawn:
    return m.Drawn(op_id=OpId("x"), first=(first,), samples=(some(tokens),))


class Lane:
    """Tells what it was told to tell."""

    def __init__(self, *told: m.Drawn, end: Any) -> None:
        self._told, self._end = told, end

    async def sample(self, source: Any, work: Any, *, on_drawn: Callable[[m.Drawn], None]) -> Any:
        for one in self._told:
            on_drawn(one)
        if isinstance(self._end, Exception):
            raise self._end
        return SampleResult(samples=(some(self._end, StopReason.STOP),))


async def seen(lane: Lane) -> list[str]:
    asked = SimpleNamespace(
        lane=lane, works=(SimpleNamespace(n=1),), served=SimpleNamespace(source=None)
    )
    pieces = [piece async for piece in watch(cast(Asked, asked))]
    assert [piece.ended is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(len(p.logprobs) == len(p.tokens) for p in pieces)
    return ["".join(map(chr, piece.tokens)) for piece in pieces]


async def test_what_is_told_again_after_a_loss_is_left_out() -> None:
    lane = Lane(news(0, "ab"), news(2, "c"), news(0, "a"), news(1, "bcd"), end="abcdef")
    assert await seen(lane) == ["ab", "c", "d", "ef"]


async def test_what_begins_later_than_what_is_known_waits_for_the_end() -> None:
    assert await seen(Lane(news(3, "d"), end="abcd")) == ["abcd"]
    assert await seen(Lane(end="ab")) == ["ab"]
    assert await seen(Lane(news(0, "ab"), end="ab")) == ["ab", ""]


@pytest.mark.parametrize("end", ["abX", "ab"])
async def test_what_comes_out_otherwise_is_an_error(end: str) -> None:
    with pytest.raises(EngineError, match="came out otherwise"):
        await seen(Lane(news(0, "abc"), end=end))
    with pytest.raises(EngineError, match="came out otherwise"):
        await seen(Lane(news(0, "abc"), news(0, end), news(2, "Y"), end="abc"))


async def test_what_a_sample_fails_with_is_raised() -> None:
    with pytest.raises(CapacityError):
        await seen(Lane(news(0, "a"), end=CapacityError("too long")))
