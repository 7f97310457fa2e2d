"""Whatever a user's environment or controller does in the head ends its own samples or its job."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launches import (
    SCRIPTED,
    SOON_S,
    EvenSource,
    EvenTokens,
    final_state,
    job,
    launch,
    run_jobs,
    samples,
)
from programs import run

from plait.cli.run import drive
from plait.core.errors import PlaitError
from plait.core.runs import Stage
from plait.envs import opening
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
    specs = {p: job(p, byte_model, **(scored if p == "columns" else {})) for p in places}
    planned = tuple(specs.values())  # as if they had been checked: they do worse than a check finds
    async with launch(tmp_path / "launch", byte_model, planned=planned) as running:
        for place in places:
            running.add_job(specs[place], Leaving(place, error))
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


class Says(EvenSource):
    """Says something of itself that is nonsense or raises, in its source or its environments."""

    def __init__(self, name: str, value: object) -> None:
        self._lies = {name: value}
        super().__init__()

    def __getattribute__(self, name: str) -> Any:
        lies = super().__getattribute__("__dict__").get("_lies", {})
        if name in lies:
            if isinstance(lies[name], BaseException):
                raise lies[name]
            return lies[name]
        return super().__getattribute__(name)

    def make(self, index: int, split: str) -> EvenTokens:
        return SaysEnv(index, self._lies)


class SaysEnv(EvenTokens):
    def __init__(self, index: int, lies: dict[str, object]) -> None:
        super().__init__(index)
        self._lies = lies

    @property
    def stop(self) -> Any:
        if isinstance(self._lies.get("stop"), BaseException):
            raise self._lies["stop"]  # type: ignore[misc]
        return self._lies.get("stop", ())


SAID = {
    "turns-nan": ("max_turns", float("nan"), "the environment's max_turns is nan"),
    "turns-negative": ("max_turns", -3, "the environment's max_turns is -3"),
    "turns-text": ("max_turns", "many", "the environment's max_turns is str"),
    "turns-raises": ("max_turns", ValueError("no turns"), "max_turns: ValueError: no turns"),
    "turns-exits": ("max_turns", SystemExit(0), "max_turns: SystemExit: 0"),
    "prompt-raises": ("same_prompt", KeyError("k"), "same_prompt: KeyError: 'k'"),
    "said-text": ("max_observation_tokens", "few", "max_observation_tokens is str"),
    "stop-raises": ("stop", SystemExit(0), "the environment's stop raised SystemExit"),
    "stop-text": ("stop", "end", "the environment's stop is str: give a tuple of strings"),
    "stop-number": ("stop", float("nan"), "the environment's stop is float"),
}


async def test_what_an_environment_says_of_itself(byte_model: Path, tmp_path: Path) -> None:
    specs = {name: job(name, byte_model) for name in (*SAID, "good")}
    async with launch(tmp_path / "launch", byte_model, planned=tuple(specs.values())) as running:
        for name, (attribute, value, _) in SAID.items():
            running.add_job(specs[name], Says(attribute, value))
        running.add_job(specs["good"], EvenSource())
        outcomes = await running.wait_all()
    for name, (_, _, why) in SAID.items():
        assert outcomes[name].stage is Stage.FAILED
        assert why in outcomes[name].reason
        assert "\n" not in outcomes[name].reason
    assert outcomes["good"].stage is Stage.DONE
    await run_jobs(tmp_path / "alone", byte_model, [job("good", byte_model)])
    assert final_state(tmp_path / "launch", "good") == final_state(tmp_path / "alone", "good")


async def test_a_start_that_never_ends(
    byte_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Never(EvenTokens):
        async def start(self) -> tuple[int, ...]:
            await asyncio.sleep(600)
            return ()

    monkeypatch.setattr(opening, "START_S", 0.2)
    source = EvenSource()
    source.make = lambda index, split: Never(index)  # type: ignore[method-assign]
    spec = job("never", byte_model)
    for place, planned in (("checked", ()), ("planned", (spec,))):
        async with launch(tmp_path / place, byte_model, planned=planned) as running:
            running.add_job(spec, source)
            outcome = await running.wait("never")
        assert outcome.stage is Stage.FAILED
        assert "the environment's start() did not return within 0.2 s" in outcome.reason


async def test_a_job_is_cancelled_while_it_is_checked(byte_model: Path, tmp_path: Path) -> None:
    started = asyncio.Event()

    class Never(EvenTokens):
        async def start(self) -> tuple[int, ...]:
            started.set()
            await asyncio.sleep(600)
            return ()

    source = EvenSource()
    source.make = lambda index, split: Never(index)  # type: ignore[method-assign]
    async with launch(tmp_path, byte_model) as running:
        running.add_job(job("never", byte_model), source)
        await started.wait()
        outcome = await asyncio.wait_for(running.cancel("never", "not wanted"), SOON_S)
        assert (outcome.stage, outcome.reason) == (Stage.CANCELLED, "not wanted")
        assert [run.status.value for run in running.session.store.runs.list()] == ["cancelled"]


async def test_a_job_is_checked_as_the_program_checks_it(byte_model: Path, tmp_path: Path) -> None:
    """What is wrong with a job that joins a launch is found before its run is made, and is told in
    the words of ``plait run``."""
    own = {"base_dir": str(tmp_path), "environment": {"name": "mute:Mute"}}
    (tmp_path / "mute.py").write_text(
        "from plait.envs.single import Problem, SingleTurn\n"
        "class Mute(SingleTurn):\n"
        "    def generate(self, rng): return Problem(prompt=str(rng.random()))\n"
    )
    wrong = (
        job("mute", byte_model, **own),
        job("unknown", byte_model, rewards=[{"function": "nowhere:f"}]),
        job("long", byte_model, limits={"max_tokens": 500}),
        job("narrow", byte_model, limits={"max_tokens": 6, "max_prompt_tokens": 1}),
    )
    said = {}
    for spec in wrong:
        with pytest.raises(PlaitError) as found:
            await drive([spec], tmp_path / "none", policy="plait", settings=SCRIPTED, quiet=True)
        said[spec.name] = str(found.value)
    assert not (tmp_path / "none").exists()
    async with launch(tmp_path / "launch", byte_model) as running:
        running.add_job(job("good", byte_model), EvenSource())
        for spec in wrong:
            running.add_job(spec)
        outcomes = await running.wait_all()
        assert [name for name in said if running.session.has_run(name)] == []
    assert outcomes.pop("good").stage is Stage.DONE
    assert {name: outcome.reason for name, outcome in outcomes.items()} == said
    assert {outcome.stage for outcome in outcomes.values()} == {Stage.FAILED}


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
    spec = job("sloppy", byte_model, steps=3)
    async with launch(tmp_path, byte_model, planned=[spec]) as running:
        running.add_job(spec, Sloppy())
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
    specs = [job(name, byte_model, steps=3) for name in ("most", "some", "none")]
    async with launch(tmp_path, byte_model, planned=specs) as running:
        for spec, n_bad in zip(specs, (3, 1, 0), strict=True):
            running.add_job(spec, Failing(n_bad))
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
