"""House: whose checkpoints are, where they may be copied to, and how much of them there may be."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from service_support import ALICE, BOB, Client, house

from plait.core.errors import Limited, NotFound, RequestError, SessionEnded
from plait.core.runs import LoraSpec
from plait.service.checkpoints import Found
from plait.service.limits import TenantLimits
from plait.service.ports import Failed, Ready
from plait.service.work import (
    CheckpointKind,
    CreateModel,
    Kind,
    LoadCheckpoint,
    LoadModel,
    SaveCheckpoint,
)


def _of_rank_2(model: Path) -> CreateModel:
    return CreateModel(base_model=str(model), lora=LoraSpec(rank=2))


async def _saved(one: Client, name: str) -> str:
    """The path of a checkpoint to train from."""
    work = SaveCheckpoint(name=name, kind=CheckpointKind.TRAINING)
    path: str = (await one.get(await one.send(Kind.SAVE_WEIGHTS, work))).path
    return path


async def test_a_copy_goes_into_a_living_session_of_the_callers_own(
    tmp_path: Path, byte_model: Path
) -> None:
    """The path of a public checkpoint tells its owner's session: nobody else makes models there."""
    async with house(tmp_path, byte_model) as h:
        one, other = await Client.open(h), await Client.open(h, BOB)
        await one.create(byte_model)
        path = await _saved(one, "kept")
        await h.models.publish(ALICE, path, public=True)
        for session_id in (one.session_id, "s-0123456789abcdef"):
            with pytest.raises(NotFound):
                await h.models.copy(BOB, path, ttl_s=None, session_id=session_id, model_seq=1)
        await h.clients.finish(BOB, other.session_id, "success", "")
        with pytest.raises(SessionEnded):
            await h.models.copy(BOB, path, ttl_s=None, session_id=other.session_id, model_seq=1)


async def test_copies_keep_apart(tmp_path: Path, byte_model: Path) -> None:
    """A copy is no copy of something else, and no model is made where one of another shape is."""
    async with house(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        kept = SaveCheckpoint(name="kept", kind=CheckpointKind.TRAINING, overwrite=True)

        async def copied(model_seq: int) -> str:
            path = (await one.get(await one.send(Kind.SAVE_WEIGHTS, kept))).path
            there = {"session_id": one.session_id, "model_seq": model_seq}
            first = await h.models.copy(ALICE, path, ttl_s=None, **there)
            again = await h.models.copy(ALICE, path, ttl_s=None, **there)
            assert again == first, "asked again, the same"
            return first

        await copied(1)
        await one.gradient(1)
        await one.step()
        with pytest.raises(RequestError, match="exists already"):
            await copied(1)
        made = Client(h, ALICE, one.session_id, 1)
        end = await made.end(await made.send(Kind.CREATE_MODEL, _of_rank_2(byte_model), seq=0))
        assert isinstance(end, Failed)
        assert "give another number" in end.error
        two = Client(h, ALICE, one.session_id, 2)
        await two.get(await two.send(Kind.CREATE_MODEL, _of_rank_2(byte_model), seq=0))
        with pytest.raises(RequestError, match="another shape"):
            await copied(2)


async def test_a_tenant_stores_so_much(tmp_path: Path, byte_model: Path) -> None:
    async with house(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)

        async def save(name: str) -> Ready | Failed:
            work = SaveCheckpoint(name=name, kind=CheckpointKind.TRAINING)
            return await one.end(await one.send(Kind.SAVE_WEIGHTS, work))

        assert isinstance(await save("first"), Ready)
        size = h.store.checkpoints.bytes_of_tenant(ALICE.tenant_id, now=h.wall())
        await h.access.put_tenant(ALICE.tenant_id, limits=TenantLimits(storage_bytes=size + 1))
        end = await save("second")
        assert isinstance(end, Failed)
        assert (end.category, "delete some" in end.error) == ("user", True)
        page = await h.models.checkpoints(ALICE, model_id=one.model_id, limit=10, offset=0)
        path = f"tinker://{one.model_id}/weights/first"
        assert [info.name for info in page.items] == ["first"]
        with pytest.raises(Limited):
            await h.models.copy(ALICE, path, ttl_s=None, session_id=None, model_seq=None)
        await h.models.delete(ALICE, path)
        assert isinstance(await save("third"), Ready)


async def test_the_name_of_what_has_expired_is_free(tmp_path: Path, byte_model: Path) -> None:
    async with house(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        for _ in range(2):
            work = SaveCheckpoint(name="same", kind=CheckpointKind.TRAINING, ttl_s=0.0)
            assert (await one.get(await one.send(Kind.SAVE_WEIGHTS, work))).path


async def test_a_pinned_checkpoint_stays_as_it_is(tmp_path: Path, byte_model: Path) -> None:
    async with house(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        work = SaveCheckpoint(name="kept", kind=CheckpointKind.TRAINING, overwrite=True)
        path = (await one.get(await one.send(Kind.SAVE_WEIGHTS, work))).path
        with pytest.raises(NotFound):
            await h.models.pin(BOB, path, pinned=True)
        await h.models.pin(ALICE, path, pinned=True)
        folders = sorted((tmp_path / "checkpoints").rglob("kept@*"))
        end = await one.end(await one.send(Kind.SAVE_WEIGHTS, work))
        assert isinstance(end, Failed)
        assert (end.category, "unpin it first" in end.error) == ("user", True)
        with pytest.raises(RequestError, match="unpin it first"):
            await h.models.delete(ALICE, path)
        await h.models.expire(ALICE, path, ttl_s=0.0)
        assert await h.checkpoints.expire_due() == 0
        page = await h.models.checkpoints(ALICE, model_id=one.model_id, limit=10, offset=0)
        assert [(info.name, info.pinned) for info in page.items] == [("kept", True)]
        assert await h.checkpoints.stored(ALICE.tenant_id) == page.items[0].size_bytes
        assert (await h.models.files(ALICE, path)).is_dir()
        assert sorted((tmp_path / "checkpoints").rglob("kept@*")) == folders, "none was made"
        await h.models.pin(ALICE, path, pinned=False)
        assert await h.checkpoints.expire_due() == 1


async def test_one_whose_files_are_gone_can_be_unpinned_and_deleted(
    tmp_path: Path, byte_model: Path
) -> None:
    """Else it would count against its tenant's room for ever."""
    async with house(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        path = await _saved(one, "lost")
        await h.models.pin(ALICE, path, pinned=True)
        shutil.rmtree(tmp_path / "checkpoints")
        with pytest.raises(RequestError, match="are gone"):
            await h.models.files(ALICE, path)
        await h.models.pin(ALICE, path, pinned=False)
        await h.models.delete(ALICE, path)
        assert await h.checkpoints.stored(ALICE.tenant_id) == 0


async def test_a_save_that_is_carried_out_again_keeps_its_pin(
    tmp_path: Path, byte_model: Path
) -> None:
    async with house(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        work = SaveCheckpoint(name="kept", kind=CheckpointKind.TRAINING)
        path = (await one.get(await one.send(Kind.SAVE_WEIGHTS, work))).path
        await h.models.pin(ALICE, path, pinned=True)
        version_dir = await h.models.files(ALICE, path)
        again = await h.checkpoints.save(
            one.model_id,
            one.seq,
            work,
            tenant_id=ALICE.tenant_id,
            version=0,
            version_dir=version_dir,
        )
        info = await h.models.checkpoint(ALICE, path)
        assert (again.path, again.size_bytes, info.pinned) == (path, info.size_bytes, True)


async def test_lists_read_the_tenants_runs_once(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(tmp_path, byte_model) as h:
        made = []
        for _ in range(3):
            one = await Client.open(h)
            await one.create(byte_model)
            work = SaveCheckpoint(name="kept", kind=CheckpointKind.TRAINING)
            await one.get(await one.send(Kind.SAVE_WEIGHTS, work))
            made.append(one)
        read: list[str] = []
        for name in ("list", "get", "find"):
            monkeypatch.setattr(h.store.runs, name, _noted(read, name, getattr(h.store.runs, name)))
        sessions = (await h.clients.sessions(ALICE, limit=10, offset=0)).items
        assert [(s.session_id, s.model_ids, s.n_checkpoints) for s in sessions] == [
            (one.session_id, [one.model_id], 1) for one in reversed(made)
        ]
        assert read == ["list"]
        page = await h.models.checkpoints(ALICE, model_id=None, limit=None, offset=0)
        assert [info.model_id for info in page.items] == [one.model_id for one in reversed(made)]
        assert read == ["list", "list"]


def _noted(read: list[str], name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **by: Any) -> Any:
        read.append(name)
        return real(*args, **by)

    return call


async def test_a_model_that_could_not_be_loaded_is_none(tmp_path: Path, byte_model: Path) -> None:
    """Not one with weights of its own, which it has for a moment while it is made."""
    async with house(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        path = await _saved(one, "kept")
        found = await h.checkpoints.find(ALICE.tenant_id, path)
        (found.folder / "adapter_model.safetensors").unlink()
        two = Client(h, ALICE, one.session_id, 1)
        asked = [
            await two.send(Kind.LOAD_MODEL, LoadModel(path=path, optimizer=True), seq=0),
            await two.gradient(1),
            await two.step(),
        ]
        ends = [await two.end(request) for request in asked]
        assert all(isinstance(end, Failed) for end in ends), ends
        assert path in ends[0].error
        assert str(tmp_path) not in ends[0].error
        assert (await h.models.model(ALICE, two.model_id)).corrupted
        assert (await one.get(await one.step())).version == 1
    async with house(tmp_path, byte_model) as h:
        two.house = h
        end = await two.end(await two.gradient(1))
        assert isinstance(end, Failed)
        assert "was not made" in end.error


async def test_what_is_deleted_before_its_turn_to_be_loaded_is_gone(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        path = await _saved(one, "kept")
        find = h.checkpoints.find

        async def find_late(*args: Any, **by: Any) -> Found:
            found = await find(*args, **by)
            await h.checkpoints.delete(found)
            return found

        monkeypatch.setattr(h.checkpoints, "find", find_late)
        end = await one.end(
            await one.send(Kind.LOAD_WEIGHTS, LoadCheckpoint(path=path, optimizer=True))
        )
        assert isinstance(end, Failed)
        assert end.error == f"the files of {path} are gone: choose another checkpoint"
        await one.gradient(1)
        assert (await one.get(await one.step())).version == 1, "as it was before"
