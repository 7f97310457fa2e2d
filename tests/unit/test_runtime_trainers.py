"""Several training workers: each run is at home on one of them, and what befalls another is not
its concern."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
import slow_trainer
from test_runtime_company import ADAM, Seen, datum, until
from test_runtime_gradients import ADDED

from plait.core.errors import ConfigError, RunEnded, WorkerLost
from plait.core.ids import LOCAL_TENANT, OpId, RunId, WorkerId
from plait.core.operations import Create, ForwardBackward, OptimStep, TrainOp
from plait.core.plan import HomePlan
from plait.core.runs import LoraSpec, RunSpec, Stage
from plait.core.view import HomeView
from plait.policies.registry import make
from plait.runtime import messages as m
from plait.runtime.client import RunClient
from plait.runtime.facts import Roster
from plait.runtime.handle import WorkerHandle
from plait.runtime.session import Session
from plait.runtime.settings import Settings
from plait.runtime.trainers import Trainers

A, B, C, D = RUNS = [RunId(name) for name in "abcd"]
FIRST, SECOND = WORKERS = [WorkerId("train-0"), WorkerId("train-1")]
pytestmark = pytest.mark.usefixtures("engine_path")


class Worker:
    """A worker that remembers what it is sent."""

    def __init__(self, worker_id: WorkerId) -> None:
        self.worker_id = worker_id
        self.sent: list[Any] = []

    def send(self, command: m.Command) -> None:
        self.sent.append(command)

    def ops(self) -> list[tuple[str, ...]]:
        """What it has been told to do, with what had to be done before, and what to forget."""
        found: list[tuple[str, ...]] = []
        for c in self.sent:
            if isinstance(c, m.Train):
                found.append((*(op.op_id for op in c.before), c.op.op_id))
            elif isinstance(c, m.TrainTogether):
                found.append(tuple(op.op_id for op in c.ops))
            elif isinstance(c, m.DropRun):
                found.append(("drop", c.run_id))
        return found


class Homes:
    """A journal of where runs went."""

    def __init__(self) -> None:
        self.rows: list[tuple[HomeView, HomePlan]] = []

    def keeps(self, kind: str) -> bool:
        return True

    def decision(self, kind: str, view: Any, state: object, plan: Any) -> None:
        if kind == "home":
            self.rows.append((view, plan))

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class Desk:
    """Four runs that have been made on two workers, nothing under way."""

    def __init__(self) -> None:
        self.roster, self.journal, self.n = Roster(), Homes(), 0
        self.trainers = Trainers(
            self.roster, make("plait"), WORKERS, now=lambda: 0.0, journal=cast(Any, self.journal)
        )
        self.workers = {worker_id: self.attach(worker_id) for worker_id in WORKERS}
        for run_id in RUNS:
            spec = RunSpec(run_id=run_id, tenant_id=LOCAL_TENANT, base_model="tiny")
            facts = self.roster.add(spec, 0.0)
            self.ask("create", run_id, Create, lora=LoraSpec())
            self.end("create", run_id)
            facts.version, facts.path = 0, "versions/000000"
        for worker in self.workers.values():
            worker.sent.clear()

    def attach(self, worker_id: WorkerId) -> Worker:
        worker = Worker(worker_id)
        self.trainers.attach(cast(WorkerHandle, worker))
        return worker

    def ask(self, name: str, run_id: RunId, op: Any = ForwardBackward, **keys: Any) -> Any:
        self.n += 1
        if op is ForwardBackward:
            keys = {"data": (datum(),), "loss": "ppo"}
        made: TrainOp = op(op_id=OpId(f"{run_id}/{name}"), run_id=run_id, seq=self.n, **keys)
        return self.trainers.submit(made)

    def end(self, name: str, run_id: RunId) -> None:
        home = self.trainers.home(run_id)
        assert home is not None
        assert self.trainers.finished(home, OpId(f"{run_id}/{name}"), ADDED, 0.1)

    def step(self, run_id: RunId) -> None:
        """The update that the run has begun ends and is committed."""
        self.ask("step", run_id, OptimStep, adam=ADAM)
        self.end("step", run_id)
        facts = self.roster[run_id]
        facts.version, facts.uncommitted = (facts.version or 0) + 1, []

    def leaves(self, *run_ids: RunId) -> None:
        for run_id in run_ids:
            self.roster[run_id].end = Stage.DONE
            self.trainers.drop(run_id, RunEnded("finished"))

    def homes(self) -> dict[RunId, WorkerId | None]:
        return {run_id: self.trainers.home(run_id) for run_id in RUNS}


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def test_runs_are_spread_and_workers_train_at_once(desk: Desk) -> None:
    assert desk.homes() == {A: FIRST, B: SECOND, C: FIRST, D: SECOND}
    for run_id in RUNS:
        desk.ask("g", run_id)
    assert [w.ops() for w in desk.workers.values()] == [[("a/g",)], [("b/g",)]]
    desk.end("g", B)
    assert desk.workers[SECOND].ops()[1:] == [("d/g",)]
    desk.end("g", A)
    assert desk.workers[FIRST].ops()[1:] == [("c/g",)]


async def test_gradients_share_a_pass_with_those_of_their_own_worker_only(desk: Desk) -> None:
    for name, runs in (("g", RUNS), ("h", RUNS)):
        for run_id in runs:
            desk.ask(name, run_id)
    for run_id in (A, B):
        desk.end("g", run_id)
    passes = [w.ops()[1:] for w in desk.workers.values()]
    for ops, mine in zip(passes, ({"a", "c"}, {"b", "d"}), strict=True):
        assert ops
        assert {op[0] for together in ops for op in together} <= mine


async def test_a_lost_worker_is_its_own_runs_loss_alone(desk: Desk) -> None:
    futures = {run_id: desk.ask("g", run_id) for run_id in RUNS}
    desk.trainers.lost(FIRST)
    desk.end("g", B)
    assert desk.workers[SECOND].ops() == [("b/g",), ("d/g",)], "nothing is read again there"
    again = desk.attach(FIRST)
    assert again.ops() == [("a/g/load", "a/g")]
    desk.trainers.lost(FIRST)
    assert isinstance(futures[A].exception(), WorkerLost)
    assert futures[B].result() == ADDED
    again = desk.attach(FIRST)
    assert again.ops() == [("c/g/load", "c/g")]


async def test_an_answer_counts_where_it_was_asked_for(desk: Desk) -> None:
    desk.ask("g", A)
    assert not desk.trainers.finished(SECOND, OpId("a/g"), ADDED, 0.1)
    assert not desk.trainers.finished(WorkerId("rollout-0"), OpId("a/g"), ADDED, 0.1)
    desk.end("g", A)


async def test_a_run_goes_to_a_worker_that_has_become_idle_between_two_updates(desk: Desk) -> None:
    desk.ask("g", A)
    desk.leaves(B, D)
    desk.ask("h", A)
    assert desk.trainers.home(A) == FIRST, "something of it is under way"
    desk.end("g", A)
    desk.end("h", A)
    desk.ask("i", A)
    assert desk.trainers.home(A) == FIRST, "what it has added up is there"
    desk.end("i", A)
    desk.step(A)
    desk.ask("g", A)
    assert desk.homes() == {A: SECOND, B: SECOND, C: FIRST, D: SECOND}
    assert desk.workers[FIRST].ops()[-1] == ("drop", A)
    assert desk.workers[SECOND].ops()[-1] == ("a/g/load", "a/g")
    desk.end("g", A)
    desk.step(A)
    desk.ask("g", C)
    assert desk.trainers.home(C) == FIRST


async def test_each_change_of_home_can_be_computed_again(desk: Desk) -> None:
    desk.leaves(B, D)
    desk.ask("g", A)
    assert [plan.worker_id for _, plan in desk.journal.rows] == [*WORKERS, *WORKERS, SECOND]
    for view, plan in desk.journal.rows:
        assert make("plait").home.decide(view, {}, 0.0)[0] == plan


class Launched:
    """A session with as many training workers as asked for, and runs on them."""

    def __init__(self, directory: Path, model: Path, n: int, **settings: Any) -> None:
        self.seen = Seen()
        self.session = Session(
            directory,
            model=str(model),
            sharing=make("plait", dispatch="fifo", merge_rows=0),
            settings=Settings(
                engine=slow_trainer.ENGINE, kv_blocks=64, cores=2, training_workers=n, **settings
            ),
            journal=self.seen,
        )

    async def __aenter__(self) -> "Launched":
        await self.session.__aenter__()
        self.runs = [await self.session.create_run(name) for name in RUNS]
        return self

    async def __aexit__(self, *args: Any) -> None:
        await self.session.__aexit__(*args)

    async def update(self, *firsts: int) -> list[Any]:
        """An update of each run at once; errors in their place."""

        async def one(run: RunClient, first: int) -> Any:
            await run.forward_backward([datum(first)], "cross_entropy")
            return await run.optim_step(ADAM)

        pairs = zip(self.runs, firsts or (10, 11, 12, 13), strict=True)
        return await asyncio.gather(*(one(r, f) for r, f in pairs), return_exceptions=True)

    async def scores(self) -> list[tuple[float, ...]]:
        return [(await run.forward([datum()])).logprobs[0] for run in self.runs]

    def kill(self, worker_id: WorkerId) -> None:
        self.session.head.pool.workers[worker_id].kill()

    def under_way(self, worker_id: WorkerId) -> bool:
        return bool(self.session.head.queue._queues[worker_id]._running)


@pytest.fixture
async def two(tmp_path: Path, byte_model: Path) -> AsyncIterator[Launched]:
    async with Launched(tmp_path / "two", byte_model, 2) as launched:
        yield launched


async def test_two_workers_teach_what_one_teaches_and_one_may_die(
    tmp_path: Path, byte_model: Path, two: Launched
) -> None:
    async with Launched(tmp_path / "one", byte_model, 1) as one:
        for _ in range(3):
            assert not [x for x in await one.update() if isinstance(x, Exception)]
        want = await one.scores()
    await two.update()
    kept = {w.worker_id: w.pid for w in two.session.head.pool.workers.values()}
    gradients = [r.forward_backward([datum(f)], "cross_entropy") for r, f in _with_firsts(two)]
    await asyncio.gather(*gradients)
    two.kill(FIRST)  # with the gradients that its runs have added up
    steps = await asyncio.gather(*(r.optim_step(ADAM) for r in two.runs), return_exceptions=True)
    assert [step.version for step in steps] == [2] * 4
    work = asyncio.create_task(two.update())
    await until(lambda: two.under_way(FIRST) and two.under_way(SECOND))
    two.kill(FIRST)
    assert not [x for x in await work if isinstance(x, Exception)]
    assert two.seen.kinds.count("worker_lost") == 2
    assert await two.scores() == want
    now = {w.worker_id: w.pid for w in two.session.head.pool.workers.values()}
    assert [w for w in kept if kept[w] != now[w]] == [FIRST]


def _with_firsts(launched: Launched) -> list[tuple[RunClient, int]]:
    return list(zip(launched.runs, (10, 11, 12, 13), strict=True))


async def test_a_deadly_gradient_takes_its_own_worker_along_and_ends_its_own_run_alone(
    two: Launched,
) -> None:
    outcomes = await two.update(slow_trainer.DEADLY, 11, 12, 13)
    assert isinstance(outcomes[0], WorkerLost)
    assert [x.version for x in outcomes[1:]] == [1, 1, 1]
    assert two.seen.kinds.count("worker_lost") == 2
    homes = [two.session.head.queue.home(r) for r in RUNS]
    assert homes == [FIRST, SECOND, FIRST, SECOND]


async def test_two_busy_workers_have_a_core_each_and_a_lone_one_has_both(two: Launched) -> None:
    data = [datum(n=1)] * 8

    async def threads(*runs: RunClient) -> list[float]:
        """Of each while all of them train, on average."""
        two.seen.spans.clear()
        await asyncio.gather(*(run.forward_backward(data, "cross_entropy") for run in runs))
        names = [run.facts.spec.run_id for run in runs]
        await until(lambda: all(_tokens(two.seen.spans, name) == len(data) for name in names))
        mine = {name: [s for s in two.seen.spans if name in s.tokens_by_run] for name in names}
        return [
            sum(s.threads * (s.t1 - s.t0) for s in spans) / sum(s.t1 - s.t0 for s in spans)
            for spans in mine.values()
        ]

    assert await threads(two.runs[0]) == [2]
    # One of them is alone for a moment at either end.
    assert max(await threads(two.runs[0], two.runs[1])) < 1.5


def _tokens(spans: list[m.Span], run_id: RunId) -> int:
    return sum(s.tokens_by_run.get(run_id, 0) for s in spans)


async def test_workers_that_do_both_are_one(tmp_path: Path, byte_model: Path) -> None:
    session = Session(
        tmp_path / "c",
        model=str(byte_model),
        sharing=make("single-collocated"),
        settings=Settings(engine="scripted", kv_blocks=64, training_workers=2),
        journal=Seen(),
    )
    with pytest.raises(ConfigError, match="whose workers do one thing each"):
        await session.__aenter__()
