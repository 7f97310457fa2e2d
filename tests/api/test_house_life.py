"""House: sessions that end, models that come and go, workers and launches that do not survive."""

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import slow_trainer
from launches import SCRIPTED, EvenSource, EvenTokens, job
from service_support import ADAM, ALICE, BOB, SOON_S, Client, adapter, house

from plait.core.errors import NotFound, RunEnded, SessionEnded, StoreError, WorkerLost
from plait.core.runs import Stage
from plait.service import house as house_module
from plait.service.house import House
from plait.service.ports import Failed
from plait.service.work import CheckpointKind, Kind, LoadModel, SaveCheckpoint, Snapshot, Step


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not true():  # noqa: ASYNC110 - what is waited for is no event of anybody's
            await asyncio.sleep(0.005)


async def _trained(directory: Path, model: Path, seeds: list[int]) -> dict[str, bytes]:
    """What a model becomes by steps of one gradient each, undisturbed."""
    async with house(directory, model) as h:
        one = await Client.open(h)
        await one.create(model)
        for seed in seeds:
            await one.gradient(seed)
            await one.get(await one.step())
        return adapter(h, one.model_id)


def _has(h: House, one: Client) -> bool:
    (offer,) = h.offers()
    launch = h.launched(offer.name)
    return launch is not None and launch.session.has_run(one.model_id.replace(":", "."))


async def test_a_session_nobody_hears_of_ends(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house_module, "TICK_S", 0.01)
    async with house(tmp_path, byte_model, session_lost_s=0.5) as h:
        lost, kept = await Client.open(h), await Client.open(h)

        async def beat(client: Client) -> None:
            while True:
                await h.clients.heartbeat(ALICE, client.session_id)
                await asyncio.sleep(0.05)

        last, beats = asyncio.create_task(beat(lost)), asyncio.create_task(beat(kept))
        for client in (lost, kept):
            await client.get(await client.create(byte_model))
        waiting = await lost.send(Kind.OPTIM_STEP, Step(adam=ADAM), seq=7)
        last.cancel()
        await _until(lambda: lost.session_id in h.sampling.over)
        end = await lost.end(waiting)
        assert isinstance(end, Failed)
        assert "no heartbeat" in end.error
        await _until(lambda: not _has(h, lost))
        lost.seq = 7
        with pytest.raises(SessionEnded):
            await lost.gradient(1)
        assert (await kept.get(await kept.step())).version == 1
        beats.cancel()
        assert (await h.clients.session(ALICE, lost.session_id)).ended == "lost"


async def test_an_idle_model_leaves_and_comes_back(tmp_path: Path, byte_model: Path) -> None:
    async with house(tmp_path / "a", byte_model, idle_s=0.05) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        await one.gradient(1)
        await one.get(await one.step())
        await _until(lambda: not _has(h, one))
        await one.gradient(2)
        await one.get(await one.step())
        there = adapter(h, one.model_id)
    assert there == await _trained(tmp_path / "b", byte_model, [1, 2])


async def test_a_model_with_gradients_does_not_leave(tmp_path: Path, byte_model: Path) -> None:
    async with house(tmp_path, byte_model, idle_s=0.02) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        await one.get(await one.gradient(1))
        await asyncio.sleep(0.2)
        assert _has(h, one)
        assert (await one.get(await one.step())).metrics["grad_norm:mean"] > 0


async def test_several_base_models(tmp_path: Path, byte_model: Path) -> None:
    other = tmp_path / "other-model"
    shutil.copytree(byte_model, other)
    async with house(tmp_path / "h", byte_model, models=[str(byte_model), str(other)]) as h:
        assert [offer.name for offer in h.offers()] == [str(byte_model), str(other)]
        clients = [await Client.open(h) for _ in range(2)]
        for client, model in zip(clients, (byte_model, other), strict=True):
            await client.create(model)
            await client.gradient(1)
            assert (await client.get(await client.step())).version == 1
        assert h.place(str(byte_model)) != h.place(str(other))
        saved = await clients[0].send(
            Kind.SAVE_WEIGHTS, SaveCheckpoint(name="x", kind=CheckpointKind.TRAINING)
        )
        path = (await clients[0].get(saved)).path
        wrong = Client(h, ALICE, clients[1].session_id, 1)
        work = LoadModel(path=path, optimizer=True, base_model=str(other))
        end = await wrong.end(await wrong.send(Kind.LOAD_MODEL, work, seq=0))
        assert isinstance(end, Failed)
        unknown = Client(h, ALICE, clients[1].session_id, 2)
        end = await unknown.end(await unknown.create("no-such-model"))
        assert isinstance(end, Failed)
        assert end.category == "user"


async def test_a_worker_that_dies_costs_nothing(tmp_path: Path, byte_model: Path) -> None:
    async with house(tmp_path / "a", byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        await one.get(await one.gradient(1))
        for process in psutil.Process().children(recursive=True):
            if any("plait.runtime.worker" in part for part in process.cmdline()):
                process.kill()
        await one.get(await one.step())
        there = adapter(h, one.model_id)
    assert there == await _trained(tmp_path / "b", byte_model, [1])


async def test_a_launch_that_gives_up_is_opened_anew(tmp_path: Path, byte_model: Path) -> None:
    async with house(tmp_path / "a", byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        await one.gradient(1)
        await one.get(await one.step())
        answer = await one.get(kept := await one.gradient(2))
        launch = await h.launch(str(byte_model))
        launch.session.head.give_up(WorkerLost("they die on every start"))
        assert h.launched(str(byte_model)) is None
        assert (await one.get(await one.step())).version == 2
        assert await one.get(kept) == answer
        assert await h.launch(str(byte_model)) is not launch
        there = adapter(h, one.model_id)
    assert there == await _trained(tmp_path / "b", byte_model, [1, 2])


async def test_checkpoints_are_shared_copied_expired_and_deleted(
    tmp_path: Path, byte_model: Path
) -> None:
    async with house(tmp_path, byte_model) as h:
        one, other = await Client.open(h), await Client.open(h, BOB)
        await one.create(byte_model)
        paths = {}
        for name, ttl_s in (("kept", None), ("gone", 0.0)):
            work = SaveCheckpoint(name=name, kind=CheckpointKind.TRAINING, ttl_s=ttl_s)
            paths[name] = (await one.get(await one.send(Kind.SAVE_WEIGHTS, work))).path
        again = SaveCheckpoint(name="kept", kind=CheckpointKind.TRAINING)
        end = await one.end(await one.send(Kind.SAVE_WEIGHTS, again))
        assert isinstance(end, Failed)
        assert "exists already" in end.error
        page = await h.models.checkpoints(ALICE, model_id=one.model_id, limit=10, offset=0)
        assert [info.name for info in page.items] == ["kept"]
        for path in (paths["kept"], paths["gone"]):
            with pytest.raises(NotFound):
                await h.models.checkpoint(BOB, path)
        with pytest.raises(NotFound):
            await h.models.checkpoint(ALICE, paths["gone"])
        assert await h.checkpoints.expire_due() == 1
        await h.models.publish(ALICE, paths["kept"], public=True)
        assert (await h.models.checkpoint(BOB, paths["kept"])).public
        with pytest.raises(NotFound):
            await h.models.delete(BOB, paths["kept"])
        copied = await h.models.copy(
            BOB, paths["kept"], ttl_s=None, session_id=other.session_id, model_seq=4
        )
        await h.models.delete(ALICE, paths["kept"])
        theirs = Client(h, BOB, other.session_id, 1)
        made = await theirs.send(Kind.LOAD_MODEL, LoadModel(path=copied, optimizer=True), seq=0)
        assert (await theirs.get(made)).model_id == theirs.model_id
        assert (await theirs.get(await theirs.gradient(1))).logprobs


@pytest.mark.parametrize("killed", [False, True])
async def test_a_sessions_samplers_are_freed_where_the_disk_refused_it_or_a_kill_came_first(
    killed: bool, tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(house_module, "TICK_S", 0.01)
    async with house(tmp_path, byte_model, sampling=None) as h:
        one = await Client.open(h)
        await one.get(await one.create(byte_model))
        await one.get(await one.send(Kind.SAVE_SAMPLER, Snapshot(sampler_seq=0)))
        with monkeypatch.context() as patched:
            patched.setattr(h.store.samplers, "free_session", refuse)
            with pytest.raises(StoreError):
                await h.clients.finish(ALICE, one.session_id, "success", "")
            assert len(h.store.samplers.live()) == 1
            if killed:
                await h._stack.aclose()
        kept = tmp_path / "samplers" / one.session_id
        assert kept.exists()

        def freed() -> bool:
            return not h.store.samplers.live() and not kept.exists()

        if not killed:
            await _until(freed)
    if killed:
        async with house(tmp_path, byte_model, sampling=None) as h:
            await _until(freed)


async def test_a_duty_of_the_house_that_fails_keeps_it_from_no_other(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house_module, "TICK_S", 0.01)
    monkeypatch.setattr(house_module, "SWEEP_TICKS", 1)
    async with house(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        work = SaveCheckpoint(name="short", kind=CheckpointKind.TRAINING, ttl_s=0.5)
        path = (await one.get(await one.send(Kind.SAVE_WEIGHTS, work))).path
        (folder,) = (tmp_path / "checkpoints").rglob("short@*")

        async def refuse() -> list[str]:
            raise StoreError("the disk is full")

        monkeypatch.setattr(h.sessions, "end_lost", refuse)
        await _until(lambda: not folder.exists())
        with pytest.raises(NotFound):
            await h.models.checkpoint(ALICE, path)


class NeverBegun(EvenSource):
    """Whose problems take for ever to be made."""

    begun = False

    def make(self, index: int, split: str) -> EvenTokens:
        made = super().make(index, split)
        made.start = self._for_ever  # type: ignore[method-assign]
        return made

    async def _for_ever(self) -> tuple[int, ...]:
        self.begun = True
        return await asyncio.Future()


@pytest.mark.usefixtures("engine_path")
@pytest.mark.parametrize("source", [NeverBegun(), EvenSource()], ids=["checked", "made"])
async def test_a_job_that_is_held_back_as_it_begins_can_be_cancelled(
    source: EvenSource, tmp_path: Path, byte_model: Path
) -> None:
    settings = replace(SCRIPTED, engine=slow_trainer.ENGINE)
    async with house(tmp_path, byte_model, settings=settings) as h:
        other = await Client.open(h)
        await other.get(await other.create(byte_model))
        launch = await h.launch(str(byte_model))
        training = await other.gradient(1)  # so that nothing is made for a while
        launch.add_job(job("held", byte_model), source)
        await _until(lambda: launch.session.has_run("held") or getattr(source, "begun", False))
        ending = asyncio.create_task(launch.cancel("held", "not wanted"))
        async with asyncio.timeout(SOON_S):
            while not ending.done():  # its tenant's limits hold it back, at whatever moment
                with suppress(RunEnded):
                    launch.pause("held")
                await asyncio.sleep(0)
        assert (ending.result().stage, ending.result().reason) == (Stage.CANCELLED, "not wanted")
        await other.get(training)
