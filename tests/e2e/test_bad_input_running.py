"""Bad input that only shows while jobs run: it ends its own job with a reason, and no other."""

import asyncio
from pathlib import Path

import pytest
from launches import SCRIPTED, EvenSource, final_state, job, launch, rows, run_jobs, samples

from plait.core.runs import Stage
from plait.jobs.launch import Outcome
from plait.jobs.spec import JobSpec
from plait.runtime.settings import Settings

pytestmark = pytest.mark.e2e

REWARDS = """
import time

def raises(completions, **columns):
    raise ValueError("no such column")

def not_a_number(completions, **columns):
    return [float("nan")] * len(completions)

def too_few(completions, **columns):
    return [1.0]

def for_ever(completions, **columns):
    while True:
        time.sleep(0.01)

def all_the_same(completions, **columns):
    return [1.0] * len(completions)
"""

Ran = tuple[Path, dict[str, Outcome]]


def with_reward(name: str, model: Path, base: Path, **over: object) -> JobSpec:
    reward: dict[str, object] = {"function": f"bad_rewards:{name}"}
    if name == "for_ever":  # the others have time, on a busy machine too
        reward["deadline_s"] = 0.3
    return job(name, model, rewards=[reward], base_dir=str(base), steps=30, **over)


@pytest.fixture(scope="module")
def good(byte_model: Path) -> JobSpec:
    return job("good", byte_model, steps=8, evaluation={"every": 3, "items": 3})


@pytest.fixture(scope="module")
def alone(good: JobSpec, byte_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A launch of the good job by itself."""
    directory = tmp_path_factory.mktemp("alone") / "launch"
    asyncio.run(run_jobs(directory, byte_model, [good]))
    return directory


class Judged(EvenSource):
    """A source whose environments leave the reward to the job's functions."""

    def make(self, index: int, split: str):  # type: ignore[no-untyped-def]
        env = super().make(index, split)
        step = env.step

        async def unjudged(tokens: tuple[int, ...]):  # type: ignore[no-untyped-def]
            turn = await step(tokens)
            return type(turn)(reward=None)

        env.step = unjudged  # type: ignore[method-assign]
        return env


@pytest.fixture(scope="module")
def ran(good: JobSpec, byte_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """All bad jobs and the good one, at once."""
    base = tmp_path_factory.mktemp("jobs")
    (base / "bad_rewards.py").write_text(REWARDS)
    names = ("raises", "not_a_number", "too_few", "for_ever", "all_the_same")
    bad = [with_reward(name, byte_model, base) for name in names]
    absurd = {"learning_rate": 1e200, "weight_decay": 1e200}
    bad.append(job("explodes", byte_model, optimizer=absurd, steps=30))
    bad.append(job("crowded", byte_model, limits={"max_tokens": 250, "max_turns": 3}))

    async def run() -> dict[str, Outcome]:
        settings = Settings(engine="scripted", kv_blocks=SCRIPTED.kv_blocks, cores=2)
        async with launch(base / "launch", byte_model, settings=settings) as running:
            for spec in bad:
                turns = spec.limits.max_turns or 1
                source = Judged() if spec.rewards else EvenSource(turns)
                running.add_job(spec, source)
            running.add_job(good, EvenSource())
            return await running.wait_all()

    return base / "launch", asyncio.run(run())


def reason(ran: Ran, name: str) -> str:
    outcome = ran[1][name]
    assert outcome.stage is Stage.FAILED
    assert "\n" not in outcome.reason
    return outcome.reason


def test_a_reward_that_raises(ran: Ran) -> None:
    assert "raised ValueError: no such column" in reason(ran, "raises")
    assert all(row["reward"] is None for row in samples(ran[0], "raises")), "an error is no reward"


def test_a_reward_that_is_not_a_number(ran: Ran) -> None:
    assert "nan" in reason(ran, "not_a_number").lower()


def test_a_reward_list_of_the_wrong_length(ran: Ran) -> None:
    assert "too_few" in (text := reason(ran, "too_few"))
    assert "1" in text
    assert "4" in text


def test_a_reward_that_loops_for_ever(ran: Ran) -> None:
    assert "ran longer than 0.3 s and was killed" in reason(ran, "for_ever")


def test_no_group_with_signal(ran: Ran) -> None:
    text = reason(ran, "all_the_same")
    assert "no group had any signal in the first 20 steps" in text
    assert "use an easier task, more samples or a higher temperature" in text
    assert len(rows(ran[0], "all_the_same")) == 20


def test_a_learning_rate_that_gives_nan(ran: Ran) -> None:
    assert "lower" in reason(ran, "explodes")
    versions = ran[0] / "jobs" / "explodes" / "versions"
    assert sorted(p.name for p in versions.iterdir()) == ["000000"], "what was committed stays"


def test_a_sample_that_outgrows_its_context_is_an_error_of_its_own(ran: Ran) -> None:
    found = samples(ran[0], "crowded")
    assert {row["error"] for row in found} == {"context of 256 tokens is full after 1 turns"}


def test_the_neighbours_are_unharmed(ran: Ran, alone: Path) -> None:
    directory, outcomes = ran
    assert outcomes["good"] == Outcome(stage=Stage.DONE, reason="finished 8 steps")
    assert rows(directory, "good") == rows(alone, "good")
    assert samples(directory, "good") == samples(alone, "good")
    assert final_state(directory, "good") == final_state(alone, "good")


def test_a_policy_that_explodes_on_the_real_engine(tmp_path: Path) -> None:
    """At once (weights that are not finite) or later (weights whose logits are not)."""
    sums = {"groups": 4, "limits": {"max_tokens": 8}, "steps": 4}
    specs = [
        job("at-once", "tiny", **sums, optimizer={"learning_rate": 1e39}),
        job(
            "later",
            "tiny",
            **sums | {"steps": 12, "adapter": {"alpha": 1e9}},
            optimizer={"learning_rate": 1e15},
        ),
        job("calm", "tiny", **sums, optimizer={"learning_rate": 4e-3}),
    ]

    async def run() -> dict[str, Outcome]:
        async with launch(tmp_path, "tiny", settings=Settings(kv_blocks=512)) as running:
            for spec in specs:
                running.add_job(spec)
            return await running.wait_all()

    outcomes = asyncio.run(run())
    ran = (tmp_path, outcomes)
    assert "learning rate 1e+39 gives weights that are not finite: lower it" in reason(
        ran, "at-once"
    )
    assert "logits are not finite" in reason(ran, "later")
    assert "lower the learning rate" in reason(ran, "later")
    assert outcomes["calm"].stage is Stage.DONE
    assert all(row["reward_errors"] == 0 for row in rows(tmp_path, "calm"))
