"""Whatever a user's environment or controller does in the head ends its own samples or its job."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launches import EvenSource, EvenTokens, final_state, job, launch, run_jobs, samples
from programs import run

from plait.core.runs import Stage
from plait.envs.protocol import Turn

pytestmark = pytest.mark.e2e

RAISED = [
    SystemExit(0),
    KeyboardInterrupt("pressed"),
    GeneratorExit("over"),
    asyncio.CancelledError(),
]


class Leaving(EvenSource):
    """Raises what no task should, at one place of its life."""

    def __init__(self, place: str, error: BaseException) -> None:
        super().__init__()
        self.place, self.error = place, error

    def leave(self, place: str) -> None:
        if place == self.place:
            raise self.error

    def make(self, index: int, split: str) -> EvenTokens:
        self.leave("make")
        return LeavingEnv(self, index)

    async def aclose(self) -> None:
        self.leave("aclose")


class LeavingEnv(EvenTokens):
    def __init__(self, source: Leaving, index: int) -> None:
        super().__init__(index)
        self.source = source

    async def start(self) -> tuple[int, ...]:
        self.source.leave("start")
        return await super().start()

    async def step(self, tokens: tuple[int, ...]) -> Turn:
        self.source.leave("step")
        return await super().step(tokens)

    def columns(self) -> dict[str, Any]:
        self.source.leave("columns")
        return {}

    def close(self) -> None:
        self.source.leave("close")


@pytest.mark.parametrize("error", RAISED, ids=lambda e: type(e).__name__)
async def test_every_place_of_an_environment(
    error: BaseException, byte_model: Path, tmp_path: Path
) -> None:
    places = ("make", "start", "step", "columns", "close", "aclose")
    (tmp_path / "flat.py").write_text("def reward(completions, **_): return [0] * len(completions)")
    scored = {"rewards": [{"function": "flat:reward"}], "base_dir": str(tmp_path)}
    async with launch(tmp_path / "launch", byte_model) as running:
        for place in places:
            more = scored if place == "columns" else {}
            running.add_job(job(place, byte_model, **more), Leaving(place, error))
        running.add_job(job("good", byte_model), EvenSource())
        outcomes = await running.wait_all()
    await run_jobs(tmp_path / "alone", byte_model, [job("good", byte_model)])
    name = type(error).__name__
    for place in ("make", "start"):
        assert outcomes[place].stage is Stage.FAILED
        assert f"the environment's {place}() raised {name}" in outcomes[place].reason
    for place in ("step", "columns", "close"):
        assert outcomes[place].stage is Stage.FAILED
        assert "no sample of the last 3 steps has a reward" in outcomes[place].reason
        found = samples(tmp_path / "launch", place)
        assert len(found) == 24
        assert all(f"{place}() raised {name}" in row["error"] for row in found)
        assert all(row["reward"] is None for row in found)
    assert outcomes["aclose"].stage is Stage.DONE
    assert outcomes["good"].stage is Stage.DONE
    assert final_state(tmp_path / "launch", "good") == final_state(tmp_path / "alone", "good")


BAD_TURNS = (
    Turn(reward=float("nan")),
    Turn(reward="0.5"),  # type: ignore[arg-type]
    Turn(tokens=(999_999_999,), done=False),
    Turn(tokens=(-1,), done=False),
    Turn(reward=1.0, info=None),  # type: ignore[arg-type]
    None,
)


class Sloppy(EvenSource):
    """The first sample of each group gets a turn that is none; the others numbers of numpy."""

    def __init__(self) -> None:
        super().__init__(turns=2)
        self.n_made = 0

    def make(self, index: int, split: str) -> EvenTokens:
        env = EvenTokens(index)
        bad = self.n_made % 4 == 0
        answer = BAD_TURNS[self.n_made // 4 % len(BAD_TURNS)]
        self.n_made += 1

        async def step(tokens: tuple[int, ...]) -> Any:
            if bad:
                return answer
            turn = await EvenTokens.step(env, tokens)
            return Turn(reward=np.float32(turn.reward), info={"why": "lone \ud800"})  # type: ignore[arg-type]

        env.step = step  # type: ignore[method-assign]
        return env


async def test_one_bad_value_is_one_samples_error(byte_model: Path, tmp_path: Path) -> None:
    async with launch(tmp_path, byte_model) as running:
        running.add_job(job("sloppy", byte_model, steps=3), Sloppy())
        outcome = await running.wait("sloppy")
    assert outcome.stage is Stage.DONE, outcome
    found = samples(tmp_path, "sloppy")
    assert len(found) == 24
    bad = [row for row in found if row["group"] == 0]
    assert [row["error"] is not None for row in found] == [row["group"] == 0 for row in found]
    assert {row["reward"] for row in bad} == {None}
    assert len({row["error"] for row in bad}) == len(BAD_TURNS)
    assert {row["why"] for row in found if row["group"]} == {"lone \\ud800"}


async def test_words_that_no_file_can_hold(byte_model: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "def reward(completions, **_): raise ValueError(chr(0xD800) + ' odd')"
    )
    spec = job(
        "odd", byte_model, rewards=[{"function": "odd:reward"}], base_dir=str(tmp_path), steps=9
    )
    async with launch(tmp_path / "launch", byte_model) as running:
        running.add_job(spec, EvenSource())
        outcome = await running.wait("odd")
    assert "raised ValueError: \\ud800 odd" in outcome.reason
    assert len(samples(tmp_path / "launch", "odd")) == 24


class Failing(EvenSource):
    """All but the first sample of a group fail, so that no group has any signal."""

    def __init__(self, n_bad: int) -> None:
        super().__init__()
        self.n_made, self.n_bad = 0, n_bad

    def make(self, index: int, split: str) -> EvenTokens:
        env = EvenTokens(index)
        bad = self.n_made % 4 < self.n_bad
        self.n_made += 1

        async def step(tokens: tuple[int, ...]) -> Turn:
            if bad:
                raise KeyError("no such column")
            return Turn(reward=1.0)

        env.step = step  # type: ignore[method-assign]
        return env


async def test_errors_are_named_before_a_lack_of_signal(byte_model: Path, tmp_path: Path) -> None:
    async with launch(tmp_path, byte_model) as running:
        running.add_job(job("most", byte_model, steps=3), Failing(3))
        running.add_job(job("some", byte_model, steps=3), Failing(1))
        running.add_job(job("none", byte_model, steps=3), Failing(0))
        outcomes = await running.wait_all()
    first = "samples were errors, the first of them: KeyError: 'no such column'"
    no_signal = "no group had any signal in the first 3 steps"
    assert outcomes["most"].reason == f"18 of 24 {first}; so {no_signal}: mend that first"
    assert outcomes["some"].reason.startswith(no_signal)
    assert outcomes["some"].reason.endswith(f"higher temperature; 6 of 24 {first}")
    assert outcomes["none"].reason.endswith("more samples or a higher temperature")


CONTROLLERS = """
import asyncio, sys
from plait.core.runs import Stage

class Base:
    def __init__(self, context): self.context = context

class Exits(Base):
    async def run(self): sys.exit(0)

class Cancels(Base):
    async def run(self): raise asyncio.CancelledError

class Early(Base):
    def __init__(self, context): sys.exit(0)
    async def run(self): pass

class Mute(Base):
    async def run(self): return None

class Vague(Base):
    async def run(self): return Stage.TRAIN, "still at it"

class Good(Base):
    async def run(self): return Stage.DONE, "did nothing"
"""


async def test_controllers(byte_model: Path, tmp_path: Path) -> None:
    (tmp_path / "loops_of_ours.py").write_text(CONTROLLERS)
    async with launch(tmp_path / "launch", byte_model) as running:
        for name in ("Exits", "Cancels", "Early", "Mute", "Vague", "Good"):
            over = {"controller": f"loops_of_ours:{name}", "base_dir": str(tmp_path)}
            running.add_job(job(name.lower(), byte_model, **over), EvenSource())
        outcomes = await running.wait_all()
    assert outcomes.pop("good").reason == "did nothing"
    assert {o.stage for o in outcomes.values()} == {Stage.FAILED}
    said = {name: outcome.reason for name, outcome in outcomes.items()}
    assert "the controller raised SystemExit: 0 (loops_of_ours.py:9)" in said["exits"]
    assert "the controller raised CancelledError" in said["cancels"]
    assert "the controller raised SystemExit: 0" in said["early"]
    assert "run() returned NoneType: return (Stage.DONE, why)" in said["mute"]
    assert "run() returned tuple: return (Stage.DONE, why)" in said["vague"]


def test_the_program_says_what_happened(tmp_path: Path) -> None:
    """A score that exits with 0 is a failure of its job, and of the program."""
    (tmp_path / "leaves.py").write_text(
        "import sys\nfrom plait.envs.single import Problem, SingleTurn\n"
        "class Leaves(SingleTurn):\n"
        "    def generate(self, rng): return Problem(prompt=str(rng.random()))\n"
        "    def score(self, problem, completion): sys.exit(0)\n"
    )
    (tmp_path / "job.yaml").write_text(
        "name: mine\nenvironment: {name: 'leaves:Leaves'}\nsteps: 9\nlimits: {max_tokens: 8}\n"
    )
    code, out, err = run("run", tmp_path / "job.yaml", "--dir", tmp_path / "launch")
    assert code == 1, (out, err)
    assert "mine: failed: no sample of the last 3 steps has a reward" in out
    assert "step() raised SystemExit: 0 (leaves.py:5)" in out


def test_a_task_of_the_users_own_that_exits_is_a_failure_that_can_be_resumed(
    tmp_path: Path,
) -> None:
    (tmp_path / "tasks.py").write_text(
        "import asyncio, sys\nfrom plait.envs.single import Problem, SingleTurn\n"
        "async def leave(): sys.exit(0)\n"
        "class Tasks(SingleTurn):\n"
        "    def generate(self, rng): return Problem(prompt=str(rng.random()))\n"
        "    def score(self, problem, completion):\n"
        "        self.task = asyncio.get_running_loop().create_task(leave())\n"
        "        return 1.0\n"
    )
    (tmp_path / "job.yaml").write_text(
        "name: mine\nenvironment: {name: 'tasks:Tasks'}\nsteps: 9\nlimits: {max_tokens: 8}\n"
    )
    code, out, err = run("run", tmp_path / "job.yaml", "--dir", tmp_path / "launch")
    assert code == 1, (out, err)
    assert "sys.exit(0)" in err
    assert f"plait run --resume {tmp_path / 'launch'}" in err
