"""How a job ends: nothing is drawn past its last step, and what goes wrong then is its own."""

import asyncio
from pathlib import Path

import pytest
from launches import EvenSource, EvenTokens, final_state, job, launch, rows

from plait.core.runs import Stage
from plait.obs.jsonl import read_jsonl

pytestmark = pytest.mark.e2e


class Remembering(EvenSource):
    """Knows which training problems it was asked for; from ``blocked`` on they are never judged."""

    def __init__(self, blocked: int = 10**9) -> None:
        super().__init__()
        self.seen: set[int] = set()
        self._blocked, self._closed = blocked, asyncio.Event()

    def make(self, index: int, split: str) -> EvenTokens:
        if split == "train":
            self.seen.add(index)
            if index >= self._blocked:
                return EvenTokens(index, 1, self._closed)
        return super().make(index, split)


class BadlyClosing(EvenSource):
    async def aclose(self) -> None:
        raise RuntimeError("the tool's process is gone")


async def test_a_stale_job_draws_nothing_past_its_last_step(
    byte_model: Path, tmp_path: Path
) -> None:
    source = Remembering()
    async with launch(tmp_path, byte_model) as running:
        running.add_job(job("stale", byte_model, steps=4, staleness=3), source)
        assert (await running.wait("stale")).stage is Stage.DONE
    assert source.seen == set(range(8)), "4 steps of 2 groups"


async def test_the_last_evaluation_does_not_wait_for_what_was_drawn_ahead(
    byte_model: Path, tmp_path: Path
) -> None:
    ends = {"steps": None, "target_reward": 0.0, "target_window": 2}
    spec = job("reaches", byte_model, staleness=1, evaluation={"items": 2}, **ends)
    source = Remembering(blocked=4)
    async with launch(tmp_path, byte_model) as running:
        running.add_job(spec, source)
        async with asyncio.timeout(30):
            outcome = await running.wait("reaches")
    assert outcome.reason == "reached its target reward after 2 steps"
    assert 4 in source.seen, "it had drawn ahead"
    assert [row["step"] for row in rows(tmp_path, "reaches") if "eval_n" in row] == [0, 2]


async def test_an_environment_that_cannot_be_closed_costs_nobody_anything(
    byte_model: Path, tmp_path: Path
) -> None:
    async with launch(tmp_path, byte_model) as running:
        running.add_job(job("messy", byte_model, steps=2), BadlyClosing())
        running.add_job(job("clean", byte_model, steps=4), EvenSource())
        outcomes = await running.wait_all()
    assert {o.stage for o in outcomes.values()} == {Stage.DONE}
    assert final_state(tmp_path, "messy")
    (told,) = [e for e in read_jsonl(tmp_path / "events.jsonl") if e["kind"] == "error"]
    assert told["run"] == "messy"
    assert "the tool's process is gone" in told["text"]
