"""What the head keeps from one decision to the next is what it would be if all were made anew,
whatever befalls the runs; and each run that waits knows why, though few are gone through."""

import asyncio
from dataclasses import replace
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

from plait.core.errors import EngineError, RunEnded
from plait.core.ids import OpId, RunId, TenantId
from plait.core.operations import AdamParams, Datum, ForwardBackward, ForwardResult, OptimStep
from plait.core.plan import DispatchPlan, reasons
from plait.core.runs import RunSpec, Stage
from plait.core.view import DispatchView, RunView, WorkItem
from plait.policies.dispatch import FairDispatch, FifoDispatch
from plait.policies.hrrn import HrrnDispatch
from plait.policies.protocol import Dispatch, State
from plait.policies.registry import make
from plait.profiles import timing
from plait.runtime import messages as m
from plait.runtime.facts import Roster
from plait.runtime.gate import Gate
from plait.runtime.gradients import Gradient
from plait.runtime.handle import WorkerHandle
from plait.runtime.trainer_queue import TrainerQueue

NAMES = st.sampled_from([RunId(name) for name in "abcd"])
DATUM = Datum(input_tokens=(1, 2, 3), target_tokens=(2, 3, 4), mask=(True,) * 3)
DONE = ForwardResult(logprobs=(), metrics={})


class Worker:
    def send(self, command: m.Command) -> None: ...


class Journal:
    def keeps(self, kind: str) -> bool:
        return True

    def event(self, run_id: RunId | None, kind: str, **detail: object) -> None: ...

    def decision(self, kind: str, view: object, state: State, plan: object) -> None: ...


def live_anew(roster: Roster) -> tuple[RunView, ...]:
    return tuple(facts.view() for facts in roster.all() if not facts.stage.ended)


def items_anew(queue: TrainerQueue, roster: Roster) -> tuple[WorkItem, ...]:
    items = []
    for run_id, pendings in queue._backlog._queues.items():
        first, facts = pendings[0], roster[run_id]
        assert not first.is_dead
        kind = type(first.op).__name__
        item = WorkItem(
            op_id=first.op.op_id,
            run_id=run_id,
            kind=kind,
            est_s=timing.expected_s(facts.timing, kind, first.tokens),
            tokens=first.tokens,
            waiting_since_s=first.since_s,
            rows=first.rows if run_id in set(queue._resident.ids()) else 0,
            finishes=isinstance(first.op, OptimStep) and bool(facts.uncommitted),
        )
        if not facts.paused:
            items.append(item)
    return tuple(items)


class Checked:
    """A dispatch policy that compares what it is told, and may word its waits at once, with reasons
    of its own for some."""

    name = "checked"

    def __init__(self, head: "Head", inner: Dispatch) -> None:
        self.head, self.inner = head, inner
        self.plan = DispatchPlan()
        self.plain = False

    def decide(self, view: DispatchView, state: State, now: float) -> tuple[DispatchPlan, State]:
        queue, roster = self.head.queue, self.head.roster
        assert view.items == items_anew(queue, roster)
        assert view.runs == live_anew(roster)
        assert view.resident == tuple(sorted(self.head.resident))
        assert all(run_id in queue._resident for run_id in self.head.resident)
        plan, state = self.inner.decide(view, state, now)
        if self.plain:
            odd = round(now) % 3
            waits = tuple(
                replace(w, reason="odd") if i % 3 == odd else w for i, w in enumerate(plan.waits)
            )
            plan = replace(plan, waits=waits)
        self.plan = plan
        return plan, state


class Head(RuleBasedStateMachine):
    """Runs come, ask, are served, held back, end and come again; workers die."""

    @initialize(dispatch=st.sampled_from([FairDispatch(), FifoDispatch(), HrrnDispatch()]))
    def begin(self, dispatch: Dispatch) -> None:
        self.loop = asyncio.new_event_loop()
        self.t, self.n = 0.0, 0
        self.roster = Roster()
        self.policy = Checked(self, dispatch)
        journal, now = cast(Any, Journal()), lambda: self.t
        self.queue = TrainerQueue(self.roster, self.policy, now=now, journal=journal)
        admission = make("plait").admission
        self.gate = Gate(self.roster, admission, budget_blocks=9, now=now, journal=journal)
        self.futures: dict[RunId, list[asyncio.Future[Any]]] = {}
        self.open: dict[RunId, Gradient] = {}
        self.resident: set[RunId] = set()
        keep, forget, start = self.queue._keep, self.queue.forget, self.queue._start

        def started(together: Any) -> None:
            self._told()
            start(together)

        def kept(facts: Any, pending: Any, *, known: bool) -> None:
            gone = pending.op.run_id in self.queue._doubtful or facts.stage.ended
            unwanted = pending.save_to and pending.future.cancelled()
            if known and not gone and not unwanted:
                self.resident.add(pending.op.run_id)
            keep(facts, pending, known=known)

        def forgotten(run_id: RunId) -> None:
            if all(p.op.run_id != run_id for p in self.queue._running.values()):
                self.resident.discard(run_id)
            forget(run_id)

        queue = cast(Any, self.queue)
        queue._start, queue._keep, queue.forget = started, kept, forgotten
        self.queue.attach(cast(WorkerHandle, Worker()))
        for name in "abcd":
            self.come(RunId(name), 1.0, 0)
            self.ask(RunId(name), step=False, open_gradient=False)

    def _told(self) -> None:
        """As if all waits had been read."""
        waits = self.policy.plan.waits
        for (run_id, reason), wait in zip(reasons(waits), waits, strict=True):
            facts = self.roster[run_id]
            if facts.rollout is None:
                assert facts.wait_reason == reason
                assert facts.wait == wait

    def _in_loop(self, call: Any) -> Any:
        async def inside() -> Any:
            return call()

        return self.loop.run_until_complete(inside())

    @rule(run_id=NAMES, weight=st.sampled_from([0.5, 1.0]), priority=st.integers(0, 1))
    def come(self, run_id: RunId, weight: float, priority: int) -> None:
        if self.roster.get(run_id) is None:
            spec = RunSpec(
                run_id=run_id,
                tenant_id=TenantId("t"),
                base_model="m",
                weight=weight,
                priority=priority,
            )
            self.roster.add(spec, self.t)

    def _live(self, run_id: RunId) -> Any:
        facts = self.roster.get(run_id)
        return None if facts is None or facts.stage.ended else facts

    @rule(run_id=NAMES, open_gradient=st.booleans())
    def ask_for_both(self, run_id: RunId, open_gradient: bool) -> None:
        self.ask(run_id, step=False, open_gradient=open_gradient)
        self.ask(run_id, step=True, open_gradient=False)

    @rule(run_id=NAMES, step=st.booleans(), open_gradient=st.booleans())
    def ask(self, run_id: RunId, step: bool, open_gradient: bool) -> None:
        if self._live(run_id) is None:
            return
        self.n += 1
        common: Any = {"op_id": OpId(f"{run_id}/{self.n}"), "run_id": run_id, "seq": self.n}
        behind = (self.open[run_id],) if run_id in self.open else ()
        if step:
            op: Any = OptimStep(**common, adam=AdamParams(learning_rate=1.0))
        else:
            op = ForwardBackward(**common, data=(DATUM,), loss="ppo", loss_config={})
        future = self._in_loop(lambda: self.queue.submit(op, behind=behind))
        self.futures.setdefault(run_id, []).append(future)
        if not step:
            gradient = self.open[run_id] = Gradient()
            gradient.queued = None if open_gradient else future

    @rule(run_id=NAMES)
    def refuse_gradient(self, run_id: RunId) -> None:
        if run_id in self.open:
            self.open.pop(run_id).refused = True
            self._in_loop(self.queue.decide)

    @rule(run_id=NAMES, first=st.booleans())
    def give_up(self, run_id: RunId, first: bool) -> None:
        """And somebody decides before anybody has heard of it."""
        futures = [f for f in self.futures.get(run_id, []) if not f.done()]
        if futures:
            futures[0 if first else -1].cancel()
            self._in_loop(self.queue.decide)

    @precondition(lambda self: self.queue._running)
    @rule(
        well=st.sampled_from([True, True, False]), seconds=st.floats(0.01, 5.0), plain=st.booleans()
    )
    def finish(self, well: bool, seconds: float, plain: bool) -> None:
        self.t += seconds
        self.policy.plain = plain
        outcome = DONE if well else EngineError("broken")
        op_id = next(iter(self.queue._running))
        self._in_loop(lambda: self.queue.finished(op_id, outcome, seconds))

    @rule(run_id=NAMES, step=st.booleans())
    def commit(self, run_id: RunId, step: bool) -> None:
        """As the ledger does."""
        if (facts := self._live(run_id)) is not None:
            facts.uncommitted = []
            if step:
                self.t += 1.0
                facts.pace.stepped(self.t)
                facts.step = facts.step + 1

    @rule(run_id=NAMES, device_s=st.floats(0.0, 3.0))
    def serve(self, run_id: RunId, device_s: float) -> None:
        if (facts := self.roster.get(run_id)) is not None:
            facts.served("rollout", device_s, 7)

    @rule(run_id=NAMES, blocks=st.integers(1, 5), evaluating=st.booleans())
    def roll(self, run_id: RunId, blocks: int, evaluating: bool) -> None:
        facts = self._live(run_id)
        if facts is not None and facts.rollout is None:
            facts.worst_blocks, facts.evaluating = blocks, evaluating
            facts.rollout_since_s = self.t
            self.gate._stage(facts, Stage.ROLLOUT)

    @rule(run_id=NAMES, rewarded=st.booleans())
    def leave_rollout(self, run_id: RunId, rewarded: bool) -> None:
        facts = self._live(run_id)
        if facts is not None and facts.rollout is not None:
            self.t += 1.0
            facts.kv_block_s += 2.0
            self.gate.leave(facts, then=Stage.REWARD if rewarded else None)
            self._in_loop(self.queue.decide)

    @rule(run_id=NAMES, paused=st.booleans())
    def pause(self, run_id: RunId, paused: bool) -> None:
        if (facts := self._live(run_id)) is not None:
            facts.paused = paused
            self._in_loop(self.queue.decide)

    @rule(run_id=NAMES, stage=st.sampled_from([Stage.DONE, Stage.FAILED]), again=st.booleans())
    def end(self, run_id: RunId, stage: Stage, again: bool) -> None:
        """As the head does."""
        if (facts := self._live(run_id)) is not None:
            facts.end, facts.told = stage, None
            self.queue.drop(run_id, RunEnded("over"))
            facts.rollout = facts.train = None
            self._in_loop(self.queue.decide)
            self.let_go(run_id, again=again)

    @rule(run_id=NAMES, again=st.booleans())
    def let_go(self, run_id: RunId, again: bool) -> None:
        if self.roster.get(run_id) is None or self.queue.has(run_id):
            return
        self.queue.forget(run_id)
        self.roster.remove(run_id)
        if again:
            self.come(run_id, 1.0, 0)
            self.ask(run_id, step=False, open_gradient=False)

    @rule()
    def replace_worker(self) -> None:
        self.resident = set()
        self.queue.lost()
        self._in_loop(lambda: self.queue.attach(cast(WorkerHandle, Worker())))

    @rule()
    def doubt(self) -> None:
        for run_id in self.queue._resident.ids():
            self.queue.forget(run_id)

    @rule()
    def look(self) -> None:
        """Not after each step, so that several changes come together."""
        assert self.roster.live_views() == live_anew(self.roster)

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            for future in (f for futures in self.futures.values() for f in futures):
                if future.done() and not future.cancelled():
                    future.exception()
            self.loop.close()


TestHead = Head.TestCase
TestHead.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
