"""Gradients of several runs in one pass: asked for, answered and lost run by run."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import slow_trainer
from test_runtime_gradients import ADDED, Silent, Worker

from plait.core.errors import EngineError, RequestError, RunEnded, WorkerLost
from plait.core.ids import LOCAL_TENANT, OpId, RunId
from plait.core.operations import AdamParams, Datum, ForwardBackward, OptimStep
from plait.core.plan import DispatchPlan
from plait.core.runs import RunSpec
from plait.policies.dispatch import FairDispatch
from plait.policies.registry import make
from plait.runtime import messages as m
from plait.runtime.client import RunClient
from plait.runtime.facts import Roster
from plait.runtime.session import Session
from plait.runtime.settings import Settings
from plait.runtime.trainer_queue import TrainerQueue

ADAM = AdamParams(learning_rate=0.05, eps=1e-8)
RUNS = [RunId(name) for name in ("a", "b", "c")]
pytestmark = pytest.mark.usefixtures("engine_path")


def datum(first: int = 10, n: int = 6, **inputs: float) -> Datum:
    tokens = (first, *range(20, 20 + n))
    given = {name: (value,) * n for name, value in inputs.items()}
    return Datum(input_tokens=tokens[:-1], target_tokens=tokens[1:], mask=(True,) * n, inputs=given)


class Counter:
    """A queue with three runs, of which two wait behind the first."""

    def __init__(
        self, *, may_share: bool = True, resident: tuple[RunId, ...] = tuple(RUNS)
    ) -> None:
        self.roster, self.worker = Roster(), Worker()
        for run_id in RUNS:
            spec = RunSpec(run_id=run_id, tenant_id=LOCAL_TENANT, base_model="tiny")
            facts = self.roster.add(spec, 0.0)
            facts.version, facts.path = 0, "versions/000000"
        self.queue = TrainerQueue(
            self.roster, FairDispatch(), now=lambda: 0.0, journal=Silent(), may_share=may_share
        )
        self.queue.attach(self.worker)
        for run_id in resident:
            self.queue._resident.add(run_id)
        self.futures = {run_id: self.ask(run_id) for run_id in RUNS}

    def ask(self, run_id: RunId, name: str = "gradient") -> Any:
        op = ForwardBackward(
            op_id=OpId(f"{run_id}/{name}"), run_id=run_id, seq=1, data=(datum(),), loss="ppo"
        )
        return self.queue.submit(op)

    def sent(self) -> list[list[str]]:
        out = []
        for command in self.worker.sent:
            if isinstance(command, m.Train):
                out.append([command.op.op_id])
            elif isinstance(command, m.TrainTogether):
                out.append([op.op_id for op in command.ops])
        return out

    def end(self, run_id: str, outcome: Any = ADDED) -> None:
        assert self.queue.finished(OpId(f"{run_id}/gradient"), outcome, 0.1)


async def test_those_that_wait_together_go_together_and_steps_follow_one_by_one() -> None:
    counter = Counter()
    assert counter.sent() == [["a/gradient"]]
    steps = [
        counter.queue.submit(OptimStep(op_id=OpId(f"{r}/step"), run_id=r, seq=2, adam=ADAM))
        for r in RUNS[1:]
    ]
    counter.end("a")
    counter.end("b")
    assert counter.sent() == [["a/gradient"], ["b/gradient", "c/gradient"]]
    counter.end("c")
    assert counter.sent()[2:] == [["b/step"]]
    counter.queue.finished(OpId("b/step"), ADDED, 0.1)
    assert counter.sent()[3:] == [["c/step"]]
    assert all(f.result() == ADDED for f in counter.futures.values())
    for run_id in RUNS:
        assert [op.op_id for op in counter.roster[run_id].uncommitted] == [f"{run_id}/gradient"]
    assert not steps[1].done()


async def test_a_failure_is_one_runs_and_takes_along_only_its_own_step() -> None:
    counter = Counter()
    counter.end("a")
    counter.end("b", RequestError("no such loss"))
    counter.end("c")
    assert isinstance(counter.futures[RUNS[1]].exception(), RequestError)
    assert counter.futures[RUNS[2]].result() == ADDED
    assert counter.roster[RUNS[1]].uncommitted == []
    assert len(counter.roster[RUNS[2]].uncommitted) == 1


async def test_deterministic_launches_keep_runs_apart() -> None:
    counter = Counter(may_share=False)
    for run_id in RUNS:
        counter.end(run_id)
    assert counter.sent() == [["a/gradient"], ["b/gradient"], ["c/gradient"]]


async def test_a_run_that_must_be_brought_back_first_goes_by_itself() -> None:
    counter = Counter(resident=(RUNS[0], RUNS[2]))
    counter.end("a")
    assert counter.sent()[1:] == [["c/gradient"]]  # a resident run goes first among equals
    counter.end("c")
    assert counter.sent()[2:] == [["b/gradient"]]
    assert [op.op_id for op in counter.worker.sent[-1].before] == ["b/gradient/load"]


async def test_a_run_that_ends_or_gives_up_leaves_the_others_alone() -> None:
    counter = Counter()
    counter.end("a")
    counter.queue.drop(RUNS[1], RunEnded("cancelled"))
    counter.futures[RUNS[2]].cancel()
    assert not any(isinstance(c, m.DropRun) for c in counter.worker.sent), "it is under way"
    counter.end("b")
    counter.end("c")
    assert isinstance(counter.futures[RUNS[1]].exception(), RunEnded)
    dropped = [c.run_id for c in counter.worker.sent if isinstance(c, m.DropRun)]
    assert dropped == [RUNS[1], RUNS[2]]
    assert counter.roster[RUNS[2]].uncommitted == []
    again = counter.ask(RUNS[0], "again")
    assert counter.sent()[-1] == ["a/again"]
    assert not again.done()


async def test_a_worker_lost_in_company_is_nobodys_doing_until_one_is_alone() -> None:
    counter = Counter()
    counter.end("a")
    for alone in ("b", "b"):
        counter.queue.lost()
        counter.queue.attach(counter.worker)
        assert counter.sent()[-1] == [f"{alone}/gradient"]
    counter.queue.lost()
    assert isinstance(counter.futures[RUNS[1]].exception(), WorkerLost)
    counter.queue.attach(counter.worker)
    assert counter.sent()[-1] == ["c/gradient"]
    counter.end("c")
    assert counter.futures[RUNS[2]].result() == ADDED


class Seen:
    """A journal that keeps plans, events and spans."""

    def __init__(self) -> None:
        self.plans: list[DispatchPlan] = []
        self.views: list[Any] = []
        self.kinds: list[str] = []
        self.spans: list[m.Span] = []

    def span(self, worker: object, span: m.Span) -> None:
        self.spans.append(span)

    def event(self, run_id: RunId | None, kind: str, **detail: object) -> None:
        self.kinds.append(kind)

    def keeps(self, kind: str) -> bool:
        return True

    def decision(self, kind: str, view: object, state: object, plan: object) -> None:
        if isinstance(plan, DispatchPlan):
            self.plans.append(plan)
            self.views.append(view)

    def together(self) -> list[set[str]]:
        """Runs of each training span that is not one run's."""
        found = [set(s.tokens_by_run) for s in self.spans if s.kind == "train"]
        return [runs for runs in found if len(runs) > 1]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30.0):
        while not holds():  # noqa: ASYNC110 - no event of anybody's
            await asyncio.sleep(0.005)


class Launched:
    """A session on the slow trainer with three runs."""

    def __init__(self, directory: Path, model: Path, **options: Any) -> None:
        self.seen = Seen()
        deterministic = options.pop("deterministic", False)
        self.session = Session(
            directory,
            model=str(model),
            # By order of arrival: who is due by fairness depends on how long things really took.
            sharing=make("plait", dispatch="fifo", **options),
            settings=Settings(
                engine=slow_trainer.ENGINE, kv_blocks=64, cores=2, deterministic=deterministic
            ),
            journal=self.seen,
        )
        self.runs: list[RunClient] = []

    async def __aenter__(self) -> "Launched":
        await self.session.__aenter__()
        self.runs = [await self.session.create_run(name) for name in ("a", "b", "c")]
        return self

    async def __aexit__(self, *args: Any) -> None:
        await self.session.__aexit__(*args)

    async def update(self, data: list[Datum] | None = None) -> list[Any]:
        """One gradient each, asked for at once (the first is begun with by itself), and a step
        each; errors in their place."""
        given = data or [datum()] * 3

        async def one(run: RunClient, item: Datum) -> Any:
            loss = "importance_sampling" if item.inputs else "cross_entropy"
            added = await run.forward_backward([item], loss)
            await run.optim_step(ADAM)
            return added

        pairs = zip(self.runs, given, strict=True)
        return await asyncio.gather(*(one(r, d) for r, d in pairs), return_exceptions=True)

    def tokens(self) -> list[int]:
        """What each run has been charged."""
        return [self.session.head.roster[run_id].tokens for run_id in RUNS]

    async def scores(self) -> list[tuple[float, ...]]:
        return [(await run.forward([datum()])).logprobs[0] for run in self.runs]


@pytest.fixture
async def apart(tmp_path: Path, byte_model: Path) -> AsyncIterator[Launched]:
    async with Launched(tmp_path / "apart", byte_model, merge_rows=0) as launched:
        yield launched


async def test_updates_in_company_are_those_of_each_run_alone(
    tmp_path: Path, byte_model: Path, apart: Launched
) -> None:
    async with Launched(tmp_path / "together", byte_model) as launched:
        for one in (apart, launched):
            for _ in range(2):
                assert not [x for x in await one.update() if isinstance(x, Exception)]
        assert await launched.scores() == await apart.scores()
        assert [run.version for run in launched.runs] == [2, 2, 2]
        assert launched.seen.together()
        assert not apart.seen.together()
        # Each run's time and tokens are its own, and the decision says why.
        for one in (apart, launched):  # a gradient of six tokens twice, and their score
            await until(lambda one=one: one.tokens() == [18, 18, 18])
        assert all(launched.session.head.roster[r].served_s > 0 for r in RUNS)
        at = next(i for i, plan in enumerate(launched.seen.plans) if plan.along)
        plan, view = launched.seen.plans[at], launched.seen.views[at]
        chosen = [i for i in view.items if i.op_id in (plan.op_id, *plan.along)]
        assert [i.rows for i in chosen] == [6] * len(chosen)
        assert not any(plan.along for plan in apart.seen.plans)
    timing = [launched.session.head.roster[r].timing.kinds["ForwardBackward"] for r in RUNS]
    for kind in timing:  # a run is charged for its part of a shared pass, not for all of it
        assert kind.seconds / kind.tokens < 1.8 * slow_trainer.TOKEN_S


async def test_deterministic_keeps_them_apart(tmp_path: Path, byte_model: Path) -> None:
    async with Launched(tmp_path / "d", byte_model, deterministic=True) as launched:
        await launched.update()
        assert not launched.seen.together()
        assert not any(plan.along for plan in launched.seen.plans)


async def test_a_bad_gradient_in_company_fails_alone(
    tmp_path: Path, byte_model: Path, apart: Launched
) -> None:
    infinite = datum(logprobs=-1e4, advantages=0.0)
    infinite.inputs["advantages"] = (1.0, *(0.0,) * 5)
    async with Launched(tmp_path / "together", byte_model) as launched:
        for one in (apart, launched):
            outcomes = await one.update([datum(), infinite, datum()])
            assert isinstance(outcomes[1], EngineError)
            assert "not finite" in str(outcomes[1])
            assert not isinstance(outcomes[2], Exception)
        assert launched.seen.together()
        assert await launched.scores() == await apart.scores()
        assert [run.version for run in launched.runs] == [1, 0, 1]


async def test_what_breaks_a_pass_is_tried_run_by_run(
    tmp_path: Path, byte_model: Path, apart: Launched
) -> None:
    data = [datum(), datum(slow_trainer.BREAKS_COMPANY), datum()]
    async with Launched(tmp_path / "together", byte_model) as launched:
        for one in (apart, launched):
            assert not [x for x in await one.update(data) if isinstance(x, Exception)]
        assert any(plan.along for plan in launched.seen.plans)
        assert "worker_lost" not in launched.seen.kinds
        assert await launched.scores() == await apart.scores()


async def test_what_cannot_be_sent_is_refused_to_its_own_run(
    tmp_path: Path, byte_model: Path
) -> None:
    odd = datum()
    odd.inputs["weights"] = (lambda: 0.0,) * 6  # type: ignore[assignment]
    async with Launched(tmp_path / "together", byte_model) as launched:
        outcomes = await launched.update([datum(), odd, datum()])
        assert isinstance(outcomes[1], RequestError)
        assert "cannot be sent to a worker" in str(outcomes[1])
        assert not [x for x in (outcomes[0], outcomes[2]) if isinstance(x, Exception)]
        assert any(plan.along for plan in launched.seen.plans)


async def test_a_worker_killed_in_company_loses_nobodys_gradient(
    tmp_path: Path, byte_model: Path, apart: Launched
) -> None:
    async with Launched(tmp_path / "together", byte_model) as launched:
        for one in (apart, launched):
            await asyncio.gather(
                *(r.forward_backward([datum()], "cross_entropy") for r in one.runs)
            )
        work = asyncio.create_task(launched.update())
        n = len(launched.seen.plans)
        await until(lambda: any(plan.along for plan in launched.seen.plans[n:]))
        for worker in list(launched.session.head.pool.workers.values()):
            if worker.config.train:
                worker.kill()
        assert not [x for x in await work if isinstance(x, Exception)]
        assert "worker_lost" in launched.seen.kinds
        await apart.update()
        assert await launched.scores() == await apart.scores()


async def test_a_deadly_gradient_ends_by_itself_and_its_company_lives(
    tmp_path: Path, byte_model: Path
) -> None:
    async with Launched(tmp_path / "together", byte_model) as launched:
        outcomes = await launched.update([datum(), datum(slow_trainer.DEADLY), datum()])
        assert isinstance(outcomes[1], WorkerLost)
        assert not [x for x in (outcomes[0], outcomes[2]) if isinstance(x, Exception)]
        assert launched.seen.kinds.count("worker_lost") == 3  # in company once, twice alone
