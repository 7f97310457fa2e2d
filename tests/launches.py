"""Launches for tests: a task that any model can get something for, jobs on it, files read back."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plait.envs.protocol import Turn
from plait.jobs.launch import Launch, Outcome
from plait.jobs.spec import JobSpec
from plait.obs.jsonl import read_jsonl
from plait.runtime.settings import Settings

TIMES = ("t", "rollout_s", "reward_s", "reference_s", "train_s", "publish_s", "wait_s", "step_s")
SOON_S = 60.0
"""For waits that take a moment, on a machine that may be busy."""
SCRIPTED = Settings(engine="scripted", kv_blocks=256, cores=2)


class EvenTokens:
    """Pays the share of even tokens; asks again until it has been answered ``turns`` times."""

    stop: tuple[str, ...] = ()

    def __init__(self, index: int, turns: int = 1, wait: asyncio.Event | None = None) -> None:
        self.index, self._left, self._wait = index, turns, wait

    async def start(self) -> tuple[int, ...]:
        return (10 + self.index % 50, 11, 12)

    async def step(self, tokens: tuple[int, ...]) -> Turn:
        if self._wait is not None:
            await self._wait.wait()
        self._left -= 1
        if self._left:
            return Turn(tokens=(13,), done=False)
        return Turn(reward=sum(t % 2 == 0 for t in tokens) / len(tokens))

    def columns(self) -> Mapping[str, Any]:
        return {"answer": self.index}


class EvenSource:
    """``EvenTokens`` by index. While ``gate`` is closed no sample is judged."""

    name = "even"
    same_prompt = True

    def __init__(self, turns: int = 1, gate: asyncio.Event | None = None) -> None:
        self.max_turns, self._gate = turns, gate

    def make(self, index: int, split: str) -> EvenTokens:
        return EvenTokens(index + 25 * (split == "eval"), self.max_turns, self._gate)

    async def aclose(self) -> None: ...


def job(name: str, model: str | Path, **over: Any) -> JobSpec:
    """A small job; its environment section is only a name where the source is given."""
    return JobSpec.model_validate(
        {
            "name": name,
            "model": str(model),
            "environment": {"name": "tiny-sum"},
            "groups": 2,
            "samples": 4,
            "steps": 4,
            "limits": {"max_tokens": 6},
            "optimizer": {"learning_rate": 0.05},
            **over,
        }
    )


def launch(directory: Path, model: str | Path, **over: Any) -> Launch:
    """A launch on the scripted engine."""
    return Launch(directory, **{"model": str(model), "settings": SCRIPTED, **over})


async def run_jobs(
    directory: Path, model: str | Path, specs: Sequence[JobSpec]
) -> dict[str, Outcome]:
    """Run the jobs on ``EvenSource`` to their end."""
    async with launch(directory, model) as running:
        for spec in specs:
            running.add_job(spec, EvenSource())
        return await running.wait_all()


async def until_step(running: Launch, name: str, step: int) -> None:
    """Wait until a job has made a step."""

    def reached() -> bool:
        return running.session.has_run(name) and running.session.run(name).facts.step >= step

    async with asyncio.timeout(SOON_S):
        while not reached():  # noqa: ASYNC110 - a job's step is no event of anybody's
            await asyncio.sleep(0.005)


def rows(directory: Path, name: str) -> list[dict[str, Any]]:
    """A job's metrics without what a clock decides."""
    found = read_jsonl(directory / "jobs" / name / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in (*TIMES, "eval_s")} for row in found]


def samples(directory: Path, name: str) -> list[dict[str, Any]]:
    """A job's samples."""
    return list(read_jsonl(directory / "jobs" / name / "samples.jsonl"))


def final_state(directory: Path, name: str) -> dict[str, bytes]:
    """Every file of a job's last version."""
    last = sorted((directory / "jobs" / name / "versions").iterdir())[-1]
    return {f"{last.name}/{file.name}": file.read_bytes() for file in sorted(last.iterdir())}


def worker_pids(directory: Path) -> list[int]:
    """Process ids of all workers that the launch ever had."""
    events = read_jsonl(directory / "events.jsonl")
    return [row["pid"] for row in events if row["kind"] == "worker_ready"]


def info(directory: Path) -> dict[str, Any]:
    """``launch.json``."""
    found: dict[str, Any] = json.loads((directory / "launch.json").read_text())
    return found
