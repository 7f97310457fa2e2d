"""plait.jobs.collect: environments are told of the end of their batch, wherever it ends."""

from types import SimpleNamespace
from typing import Any

import pytest

from plait.core.errors import RequestError
from plait.envs.declared import read_declared
from plait.jobs.collect import Batch, collect
from plait.jobs.room import Room
from plait.jobs.spec import JobSpec

BATCH = Batch(split="train", first=0, n_groups=2, n_samples=2, tag=("train", 0))


class Env:
    stop = ()

    def __init__(self, n_tokens: int, fails: bool) -> None:
        self.n_tokens, self.fails, self.closed = n_tokens, fails, False

    async def start(self) -> tuple[int, ...]:
        if self.fails:
            raise ValueError("no such problem")
        return (5,) * self.n_tokens

    def close(self) -> None:
        self.closed = True


class Source:
    name, same_prompt, max_turns = "closing", True, 1

    def __init__(self, **keys: Any) -> None:
        self.keys, self.made, self.most = keys, [], keys.pop("most", 99)

    def make(self, index: int, split: str) -> Env:
        if len(self.made) == self.most:
            raise ValueError("no more")
        self.made.append(Env(**self.keys))
        return self.made[-1]


class Refusing:
    published = 0

    def rollout(self, *_: Any, **__: Any) -> Any:
        raise RequestError("not admitted")


def context(source: Source) -> Any:
    spec = JobSpec.model_validate(
        {"name": "a", "environment": {"name": "x"}, "steps": 1, "limits": {"max_tokens": 8}}
    )
    room = Room(max_context=64, cache_tokens=64)
    return SimpleNamespace(
        source=source,
        declared=read_declared(source),  # type: ignore[arg-type]
        spec=spec,
        room=room,
        client=Refusing(),
        now=lambda: 0.0,
        block_size=16,
        vocab_size=64,
    )


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"n_tokens": 3, "fails": True}, "no such problem"),
        ({"n_tokens": 60, "fails": False}, "at most 56 fit"),
        ({"n_tokens": 3, "fails": False}, "not admitted"),
        ({"n_tokens": 3, "fails": False, "most": 3}, "no more"),
    ],
)
async def test_environments_of_a_batch_that_never_began_are_closed(
    keys: dict[str, Any], error: str
) -> None:
    source = Source(**keys)
    with pytest.raises((ValueError, RequestError), match=error):
        await collect(context(source), BATCH)
    assert len(source.made) >= 3
    assert all(env.closed for env in source.made)
