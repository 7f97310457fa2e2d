"""Rolling: a step that fails costs the run that makes it fail, and nobody else."""

from pathlib import Path

import pytest

from plait.core.errors import EngineError, PlaitError
from plait.core.ids import OpId, RunId
from plait.core.operations import Sample, SampleResult, SamplingParams
from plait.engines.protocol import ForwardStep
from plait.engines.scripted.rollout import ScriptedRollout
from plait.models.shape import read_shape
from plait.runtime.rolling import Rolling

BIG = RunId("big")


class Failing(ScriptedRollout):
    """Runs out of memory whenever samples of ``BIG`` take part in a step, or more than ``most``
    runs do; keeps its samples, as the contract says."""

    most = 99

    def step(self) -> ForwardStep:
        runs = {g.op.run_id for g in self._groups.values()} - self._scheduler._paused
        if BIG in runs or len(runs) > self.most:
            raise EngineError("out of memory")
        return super().step()


@pytest.fixture
def engine(byte_model: Path) -> Failing:
    return Failing(read_shape(byte_model), 64, 16, 64, 64)


def ask(run_id: str, n: int = 1) -> list[Sample]:
    return [
        Sample(
            op_id=OpId(f"{run_id}/{i}"),
            run_id=RunId(run_id),
            version=None,
            prompt=(1, 2, 3),
            n=1,
            params=SamplingParams(max_tokens=5, seed=i),
        )
        for i in range(n)
    ]


def drain(rolling: Rolling) -> tuple[dict[OpId, SampleResult], dict[OpId, PlaitError], list[bool]]:
    finished: dict[OpId, SampleResult] = {}
    failed: dict[OpId, PlaitError] = {}
    last = []
    while rolling.has_work():
        step, ends_run = rolling.step()
        finished |= dict(step.finished)
        failed |= dict(step.failed)
        if step.finished or step.failed:
            last.append(ends_run)
    return finished, failed, last


def test_the_culprits_samples_fail_and_the_neighbours_are_as_alone(
    engine: Failing, byte_model: Path
) -> None:
    alone = Rolling(ScriptedRollout(read_shape(byte_model), 64, 16, 64, 64))
    rolling = Rolling(engine)
    for op in ask("small", 3):
        alone.add(op)
        rolling.add(op)
    for op in ask("big", 2):
        rolling.add(op)
    finished, failed, _ = drain(rolling)
    assert set(failed) == {OpId("big/0"), OpId("big/1")}
    assert all(type(e) is EngineError and str(e) == "out of memory" for e in failed.values())
    assert finished == drain(alone)[0]


def test_what_fails_together_and_not_alone_fails_nobody(engine: Failing) -> None:
    engine.most = 1
    rolling = Rolling(engine)
    for op in (*ask("a"), *ask("b")):
        rolling.add(op)
    finished, failed, _ = drain(rolling)
    assert not failed
    assert set(finished) == {OpId("a/0"), OpId("b/0")}


def test_a_paused_run_stays_paused_when_a_step_fails(engine: Failing) -> None:
    rolling = Rolling(engine)
    for op in (*ask("held"), *ask("big")):
        rolling.add(op)
    rolling.set_paused(RunId("held"), True)
    assert set(drain(rolling)[1]) == {OpId("big/0")}
    rolling.set_paused(RunId("held"), False)
    assert set(drain(rolling)[0]) == {OpId("held/0")}


def test_the_end_of_a_runs_last_sample_is_told(engine: Failing) -> None:
    rolling = Rolling(engine)
    for op in ask("a", 2):
        rolling.add(op)
    rolling.abort([OpId("a/1")])
    rolling.add(
        Sample(
            op_id=OpId("a/long"),
            run_id=RunId("a"),
            version=None,
            prompt=(1,),
            n=1,
            params=SamplingParams(max_tokens=9, ignore_eos=True),
        )
    )
    assert drain(rolling)[2] == [False, True]
