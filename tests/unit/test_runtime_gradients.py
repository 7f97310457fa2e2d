"""Gradients asked for with their step: what fails or is given up is never half an update."""

from typing import Any, cast

import pytest

from plait.core.errors import EngineError, NotDone, RequestError, StoreError
from plait.core.ids import LOCAL_TENANT, OpId, RunId
from plait.core.operations import AdamParams, ForwardBackward, ForwardResult, OptimStep, TrainOp
from plait.core.runs import RunSpec
from plait.policies.dispatch import FairDispatch
from plait.runtime import messages as m
from plait.runtime.facts import Roster, RunFacts
from plait.runtime.gradients import Gradient, Gradients
from plait.runtime.handle import WorkerHandle
from plait.runtime.trainer_queue import TrainerQueue

RUN, OTHER = RunId("one"), RunId("two")
ADAM = AdamParams(learning_rate=1e-3)
ADDED = ForwardResult(logprobs=(), metrics={})


class Worker:
    """A worker that remembers what it is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, command: m.Command) -> None:
        self.sent.append(command)

    def ops(self) -> list[str]:
        return [c.op.op_id for c in self.sent if isinstance(c, m.Train)]


class Silent:
    """A journal that keeps nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class Desk:
    """One run's queue on a worker, and what was asked for."""

    def __init__(self) -> None:
        roster, self.worker = Roster(), Worker()
        for run_id in (RUN, OTHER):
            facts: RunFacts = roster.add(
                RunSpec(run_id=run_id, tenant_id=LOCAL_TENANT, base_model="tiny"), 0.0
            )
            facts.version, facts.path = 0, "versions/000000"
        self.facts = roster[RUN]
        self.queue = TrainerQueue(
            roster, FairDispatch(), now=lambda: 0.0, journal=cast(Any, Silent())
        )
        self.queue.attach(cast(WorkerHandle, self.worker))
        self.seq = 0

    def ask(self, name: str, op: type[TrainOp], *behind: Gradient, run_id: RunId = RUN) -> Any:
        self.seq += 1
        common: dict[str, Any] = {"op_id": OpId(name), "run_id": run_id, "seq": self.seq}
        if op is ForwardBackward:
            made: TrainOp = ForwardBackward(**common, data=(), loss="ppo", loss_config={})
        else:
            made = OptimStep(**common, adam=ADAM)
        return self.queue.submit(made, behind=behind)

    def gradient(self, name: str, *behind: Gradient) -> Gradient:
        gradient = Gradient()
        gradient.queued = self.ask(name, ForwardBackward, *behind)
        return gradient


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def test_no_other_runs_gradient_comes_between_a_gradient_and_its_step(desk: Desk) -> None:
    gradient = desk.gradient("gradient")
    desk.ask("other", ForwardBackward, run_id=OTHER)
    desk.ask("step", OptimStep, gradient)
    desk.facts.served_s = 5.0  # and though its run has had more than the other
    desk.queue.finished(OpId("gradient"), ADDED, 5.0)
    assert desk.worker.ops() == ["gradient", "step"]


async def test_a_gradient_that_fails_takes_along_what_was_asked_for_behind_it(desk: Desk) -> None:
    first = desk.gradient("first")
    second = desk.gradient("second", first)
    step = desk.ask("step", OptimStep, first, second)
    desk.queue.finished(OpId("first"), RequestError("no such loss"), 0.1)
    for error in (second.queued.exception(), step.exception()):
        assert isinstance(error, NotDone)
        assert "the gradient before it failed (no such loss); mend that" in str(error)
        assert error.http_status == RequestError.http_status
    assert desk.worker.ops() == ["first"]


async def test_what_is_not_done_for_our_fault_is_our_fault(desk: Desk) -> None:
    first = desk.gradient("first")
    step = desk.ask("step", OptimStep, first)
    desk.queue.finished(OpId("first"), EngineError("out of memory"), 0.1)
    error = step.exception()
    assert isinstance(error, NotDone)
    assert str(error).endswith("failed (out of memory); ask for both again")
    assert error.http_status == 500


async def test_who_asks_again_is_not_made_to_pay_for_what_was_given_up(desk: Desk) -> None:
    busy = desk.gradient("busy")
    given_up = desk.gradient("given up")
    old_step = desk.ask("old step", OptimStep, given_up)
    given_up.queued.cancel()
    again = desk.gradient("again")
    step = desk.ask("step", OptimStep, again)
    for name in ("busy", "again"):
        desk.queue.finished(OpId(name), ADDED, 0.1)
    assert old_step.exception() is not None
    assert busy.queued.done()
    assert desk.worker.ops() == ["busy", "again", "step"]
    assert not step.done()


async def test_a_gradient_given_up_while_it_is_made_does_not_count(desk: Desk) -> None:
    kept = desk.gradient("kept")
    desk.queue.finished(OpId("kept"), ADDED, 0.1)
    given_up = desk.gradient("given up", kept)
    step = desk.ask("step", OptimStep, kept, given_up)
    given_up.queued.cancel()
    desk.queue.finished(OpId("given up"), ADDED, 0.1)
    assert step.exception() is not None
    assert [op.op_id for op in desk.facts.uncommitted] == ["kept"]
    desk.ask("next step", OptimStep)
    last = desk.worker.sent[-1]
    assert [op.op_id for op in last.before] == ["next step/load", "kept"]


async def test_what_was_added_is_no_failure_though_its_end_cannot_be_written(desk: Desk) -> None:
    gradients = Gradients()
    queued = desk.ask("gradient", ForwardBackward)
    desk.queue.finished(OpId("gradient"), ADDED, 0.1)
    with pytest.raises(StoreError), gradients.one() as gradient:  # noqa: PT012 - as the client does
        gradient.queued = queued
        raise StoreError("the disk is full")
    assert not gradient.failed
    assert gradients.before() == ()


def test_what_was_never_queued_has_failed() -> None:
    with pytest.raises(StoreError), Gradients().one() as gradient:
        raise StoreError("the disk is full")
    assert gradient.failed
