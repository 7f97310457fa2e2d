"""Client: a committed version is never written again, whatever interrupts the one who made it."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import PlaitError, StoreError
from plait.core.ids import OpId, RunId
from plait.core.operations import AdamParams, Datum, ForwardBackward, OptimStep
from plait.core.runs import Stage
from plait.policies.registry import make
from plait.runtime.client import RunClient
from plait.runtime.session import Session
from plait.runtime.settings import Settings
from plait.store.files import VersionDirs
from plait.store.rows import MutationStatus

SOON_S = 30.0
ADAM = AdamParams(learning_rate=1e-2)
DATA = [
    Datum(
        input_tokens=(1, 2),
        target_tokens=(2, 3),
        mask=[True, True],
        inputs={"advantages": [1.0, 1.0], "logprobs": [0.0, 0.0]},
    )
]


class Events:
    """A journal that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def span(self, worker: object, span: object) -> None: ...

    def event(self, run_id: RunId | None, kind: str, **detail: object) -> None:
        self.events.append((kind, detail))

    def keeps(self, kind: str) -> bool:
        return True

    def decision(self, kind: str, view: object, state: object, plan: object) -> None: ...


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
async def session(tmp_path: Path, byte_model: Path, events: Events) -> AsyncIterator[Session]:
    async with Session(
        tmp_path / "a",
        model=str(byte_model),
        sharing=make("plait"),
        settings=Settings(engine="scripted", kv_blocks=64, cores=2),
        journal=events,
    ) as s:
        yield s


def rows(session: Session) -> list[int]:
    return [r.version for r in session.store.mutations.versions(RunId("one"))]


async def step(run: RunClient) -> None:
    await run.forward_backward(DATA, "ppo")
    await run.optim_step(ADAM)


async def test_a_step_cancelled_while_it_is_committed_is_committed_and_known(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await session.create_run("one")
    began, commit = threading.Event(), session.store.mutations.commit_version

    def slowly(*args: Any, **kwargs: Any) -> Any:
        began.set()
        time.sleep(0.1)
        return commit(*args, **kwargs)

    monkeypatch.setattr(session.store.mutations, "commit_version", slowly)
    task = asyncio.create_task(step(run))
    await asyncio.to_thread(began.wait, 10.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rows(session) == [0, 1]
    assert run.version == 1
    await step(run)
    assert rows(session)[-1] == run.version == 2


async def test_pipelined_operations_run_in_order_and_each_step_makes_its_own_version(
    session: Session,
) -> None:
    run = await session.create_run("one")
    calls = [
        run.forward_backward(DATA, "ppo"),
        run.optim_step(ADAM),
        run.forward_backward(DATA, "ppo"),
        run.optim_step(ADAM),
        run.publish(),
    ]
    done = await asyncio.gather(*calls)
    assert [done[1].version, done[3].version] == [1, 2]  # type: ignore[union-attr]
    assert run.published == 2
    kinds = [m.kind for m in session.store.mutations.since(RunId("one"), 0)]
    assert kinds == ["Create", *["ForwardBackward", "OptimStep"] * 2, "Publish"]


async def test_a_step_whose_progress_raises_leaves_no_trace_on_the_worker(
    session: Session,
) -> None:
    async def twice(name: str, *, stumble: bool) -> list[float]:
        run = await session.create_run(name)
        await run.forward_backward(DATA, "ppo")
        if stumble:
            with pytest.raises(ZeroDivisionError):
                await run.optim_step(ADAM, progress=lambda done: {"step": 1 // 0})
            assert run.version == 0
        await run.optim_step(ADAM)
        return list((await run.forward(DATA)).logprobs[0])

    assert await twice("one", stumble=True) == await twice("two", stumble=False)


async def test_a_version_that_is_committed_is_not_made_again(session: Session) -> None:
    run = await session.create_run("one")
    await step(run)
    before = (Path(run.facts.path) / "adapter_model.safetensors").read_bytes()
    run.facts.version = 0  # as if the commit had gone unnoticed
    with pytest.raises(StoreError, match="committed"):
        await step(run)
    assert (Path(run.facts.path) / "adapter_model.safetensors").read_bytes() == before


async def test_a_commit_keeps_the_gradients_that_came_after_its_step(session: Session) -> None:
    run = await session.create_run("one")
    ledger = run._ledger
    name, kind = RunId("one"), "ppo"

    def gradient(seq: int) -> ForwardBackward:
        return ForwardBackward(op_id=OpId(f"g{seq}"), run_id=name, seq=seq, data=(), loss=kind)

    early, late = gradient(2), gradient(4)
    optim = OptimStep(op_id=OpId("o"), run_id=name, seq=3, adam=ADAM)
    for op in (early, optim):
        await ledger.accept(op)
    run.facts.uncommitted = [early, late]
    await ledger.commit(optim, 1, str(run._mutations._versions_dir / "000001"), None)
    assert run.facts.uncommitted == [late]


async def test_a_retention_that_fails_is_an_event_and_the_step_stands(
    session: Session, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await session.create_run("one")

    def full(*args: object, **kwargs: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(run._ledger._retention, "record", full)
    await step(run)
    assert run.version == 1
    assert ("retention_failed", {"reason": "the disk is full"}) in events.events


async def test_versions_are_removed_while_the_store_s_thread_does_other_things(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await session.create_run("one")
    began, go_on = threading.Event(), threading.Event()
    remove = VersionDirs.remove

    def slowly(self: VersionDirs, versions: Sequence[int]) -> None:
        began.set()
        assert go_on.wait(SOON_S)
        remove(self, versions)

    monkeypatch.setattr(VersionDirs, "remove", slowly)
    await step(run)
    last = asyncio.create_task(step(run))
    assert await asyncio.to_thread(began.wait, SOON_S)
    async with asyncio.timeout(SOON_S):  # the store serves others meanwhile
        await run.progress()
    assert rows(session) == [1, 2]
    go_on.set()
    await last
    assert VersionDirs(run._mutations._versions_dir).versions() == [1, 2]


async def test_who_is_cancelled_leaves_no_retention_half_done(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await session.create_run("one")
    for _ in range(2):
        await step(run)
    began, go_on = threading.Event(), threading.Event()
    note = run._ledger._retention.note

    def slowly(version: int) -> Any:
        began.set()
        assert go_on.wait(SOON_S)
        return note(version)

    monkeypatch.setattr(run._ledger._retention, "note", slowly)
    last = asyncio.create_task(step(run))
    assert await asyncio.to_thread(began.wait, SOON_S)
    last.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await last
    assert rows(session) == VersionDirs(run._mutations._versions_dir).versions() == [2, 3]


async def test_a_gradient_ends_in_the_transaction_of_its_version(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await session.create_run("one")
    log, writer, written = session.store.mutations, run._ledger._writer, []
    write = writer.write

    async def counted(function: Any, *args: Any, **kwargs: Any) -> Any:
        written.append(function.__name__)
        return await write(function, *args, **kwargs)

    monkeypatch.setattr(writer, "write", counted)
    await step(run)
    assert written == ["_accept_now", "_accept_now", "commit_version", "record"]
    assert {row.status for row in log.since(RunId("one"), 0)} == {MutationStatus.DONE}
    await run.forward_backward(DATA, "ppo")
    assert log.since(RunId("one"), 3)[-1].status is MutationStatus.ACCEPTED
    await run.settle()
    assert log.since(RunId("one"), 3)[-1].status is MutationStatus.DONE
    await run.optim_step(ADAM)


async def test_a_number_that_the_store_did_not_take_is_used_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await session.create_run("one")

    def full(*args: object, **kwargs: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(session.store.mutations, "accept", full)
        with pytest.raises(StoreError, match="full"):
            await run.forward_backward(DATA, "ppo")
    await step(run)
    assert run.version == 1


async def test_a_rollout_that_fails_leaves_the_run_idle_and_is_not_measured(
    session: Session,
) -> None:
    run = await session.create_run("one")
    with pytest.raises(PlaitError):
        async with run.rollout(4):
            raise PlaitError("no")
    assert run.facts.stage is Stage.IDLE
    assert run.facts.kv == {}
    async with run.rollout(4):
        pass
    assert run.facts.stage is Stage.REWARD


async def test_a_run_cancelled_as_it_is_admitted_gives_its_place_back(session: Session) -> None:
    run, other = await session.create_run("one"), await session.create_run("two")

    async def roll(which: RunClient) -> None:
        async with which.rollout(60):
            await asyncio.sleep(3600)

    async with other.rollout(60):
        task = asyncio.create_task(roll(run))
        await asyncio.sleep(0.01)
        assert run.facts.stage is Stage.WAIT_ROLLOUT
    assert run.facts.stage is Stage.ROLLOUT
    task.cancel()  # admitted; the task has not had its turn to notice it
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run.facts.stage is Stage.IDLE
    other.scored()
    async with asyncio.timeout(5.0), other.rollout(60):
        assert other.facts.stage is Stage.ROLLOUT


async def test_residency_is_measured_over_the_whole_rollout(session: Session) -> None:
    run = await session.create_run("one")
    async with run.rollout(4):
        await asyncio.sleep(0.2)
        await step(run)  # the training side moves meanwhile, as with bounded staleness
        run.facts.kv_block_s = 1.0
    assert run.facts.kv[False].seconds > 0.2


async def test_a_gradient_that_fails_takes_the_step_asked_for_behind_it_along(
    session: Session,
) -> None:
    run = await session.create_run("one")
    outcomes = await asyncio.gather(
        run.forward_backward(DATA, "no-such-loss"),
        run.forward_backward(DATA, "ppo"),
        run.optim_step(ADAM),
        return_exceptions=True,
    )
    assert "no-such-loss" in str(outcomes[0])
    assert all("the gradient before it failed" in str(o) for o in outcomes[1:])
    assert run.version == 0
    await step(run)
    assert run.version == 1


async def test_a_gradient_given_up_before_its_turn_takes_its_step_along(session: Session) -> None:
    one = await session.create_run("one")
    given_up = asyncio.create_task(one.forward_backward(DATA, "ppo"))
    stepping = asyncio.create_task(one.optim_step(ADAM))
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(PlaitError, match="the gradient before it failed"):
        await stepping
    assert one.version == 0
