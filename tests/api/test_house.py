"""House: numbered requests through the ports, on the scripted engine."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from service_support import ADAM, ALICE, BOB, SOON_S, Client, adapter, batch, datum, house

from plait.core.errors import Limited, NotFound, RequestError, SessionEnded
from plait.core.runs import LoraSpec
from plait.service import endings, held
from plait.service.order import MAX_MISSING
from plait.service.ports import Failed
from plait.service.work import (
    CheckpointKind,
    CreateModel,
    Kind,
    LoadCheckpoint,
    LoadModel,
    SaveCheckpoint,
    Snapshot,
)
from plait.store import requests as requests_module

SAVE = SaveCheckpoint(name="one", kind=CheckpointKind.TRAINING)


async def test_a_model_is_made_trained_saved_and_loaded(tmp_path: Path, byte_model: Path) -> None:
    async with house(tmp_path, byte_model) as h:
        one = await Client.open(h)
        made = await one.create(byte_model)
        asked = [await one.gradient(1), await one.gradient(2), await one.step()]
        saved = await one.send(Kind.SAVE_WEIGHTS, SAVE)
        drawn = await one.send(Kind.SAVE_SAMPLER, Snapshot(sampler_seq=3))
        more = [await one.gradient(3), await one.step()]
        assert (await one.get(made)).model_id == one.model_id
        first, second, step = [await one.get(r) for r in asked]
        assert len(first.logprobs) == 2
        assert second.metrics["loss:sum"] != first.metrics["loss:sum"]
        assert step.version == 1
        path = (await one.get(saved)).path
        assert path == f"tinker://{one.model_id}/weights/one"
        assert (await one.get(drawn)).sampler_id == f"{one.session_id}:sample:3"
        assert h.sampling.snapshots == [(f"{one.session_id}:sample:3", 1)]
        assert (await one.get(more[1])).version == 2
        trained = adapter(h, one.model_id)

        other = Client(h, ALICE, one.session_id, 1)
        await other.send(Kind.LOAD_MODEL, LoadModel(path=path, optimizer=True), seq=0)
        await other.gradient(3)
        assert (await other.get(await other.step())).version == 2
        assert adapter(h, other.model_id) == trained, "with its optimizer it goes on as it would"
        loaded = await other.send(Kind.LOAD_WEIGHTS, LoadCheckpoint(path=path, optimizer=False))
        assert (await other.get(loaded)).path == path


async def test_chunks_may_come_in_any_order_and_twice(tmp_path: Path, byte_model: Path) -> None:
    async with house(tmp_path, byte_model) as h:
        one, two = await Client.open(h), await Client.open(h)
        for client, order in ((one, (1, 2, 3)), (two, (3, 2, 1))):
            await client.create(byte_model)
            ids = {s: await client.send(Kind.FORWARD_BACKWARD, batch(s), seq=s) for s in order}
            again = [await client.send(Kind.FORWARD_BACKWARD, batch(9), seq=s) for s in order]
            assert again == list(ids.values())
            client.seq = 3
            assert (await client.get(await client.step())).version == 1
        assert adapter(h, one.model_id) == adapter(h, two.model_id)


async def test_what_fails_uses_up_its_number_and_no_other(tmp_path: Path, byte_model: Path) -> None:
    async with house(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        bad = await one.end(await one.gradient(1, loss="no such loss"))
        assert isinstance(bad, Failed)
        assert bad.category == "user"
        one.seq += 1
        await h.requests.skip(ALICE, one.model_id, one.seq, "its body was no protobuf")
        await one.gradient(2)
        assert (await one.get(await one.step())).version == 1
        both = [await one.gradient(3, loss="no such loss"), await one.step()]
        ends = [await one.end(r) for r in both]
        assert all(isinstance(e, Failed) for e in ends), "it was asked for behind the gradient"
        assert (await one.get(await one.step())).version == 2


async def test_a_number_far_beyond_all_others_is_refused(tmp_path: Path, byte_model: Path) -> None:
    """Each number before it would be written down when it is given up: two thousand million."""
    async with house(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.get(await one.create(byte_model))
        one.seq += 1
        far = one.seq + MAX_MISSING + 1
        for seq in (far, 2**31 - 1):
            with pytest.raises(RequestError, match="one after the other"):
                await one.send(Kind.FORWARD_BACKWARD, batch(1), seq=seq)
            await h.requests.skip(ALICE, one.model_id, seq, "its body was no protobuf")
        near = await one.send(Kind.FORWARD_BACKWARD, batch(1), seq=far - 1)
        assert near == f"{one.model_id}:{far - 1}"
        line = await h.lines.line(ALICE, one.model_id)
        assert len(line.intake.order.missing()) == MAX_MISSING


async def test_what_stands_behind_a_failure_fails_by_the_same_fault_and_names_it(
    tmp_path: Path, byte_model: Path
) -> None:
    too_much = replace(datum(1), inputs={"weights": [1e308] * 8})  # its loss is infinite
    async with house(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        for bad in (batch(1, loss="no such loss"), replace(batch(1), data=(too_much,))):
            first = one.seq + 1
            asked = [
                await one.send(Kind.FORWARD_BACKWARD, bad),
                await one.gradient(2),
                await one.step(),
            ]
            saved = await one.send(Kind.SAVE_WEIGHTS, replace(SAVE, name=f"after-{first}"))
            cause, *behind = [await one.end(request) for request in asked]
            assert isinstance(cause, Failed)
            assert cause.category == "user"
            for end in behind:
                assert isinstance(end, Failed)
                assert end.category == "user"
                assert f"(request {first}: {cause.error}); mend that and ask for" in end.error
            await one.get(saved)
        assert (await one.get(await one.step())).version == 1

        two = Client(h, ALICE, one.session_id, 1)
        work = CreateModel(base_model=str(byte_model), lora=LoraSpec(rank=10**6))
        made = await two.end(await two.send(Kind.CREATE_MODEL, work, seq=0))
        behind = [await two.end(await two.gradient(1)), await two.end(await two.step())]
        assert isinstance(made, Failed)
        for end in behind:
            assert isinstance(end, Failed)
            assert end.category == "user"
            assert f"the model was not made (request 0: {made.error})" in end.error


async def test_foreign_ids_are_unknown_and_ended_sessions_refuse(
    tmp_path: Path, byte_model: Path
) -> None:
    async with house(tmp_path, byte_model) as h:
        one = await Client.open(h)
        made = await one.create(byte_model)
        await one.get(made)
        foreign = Client(h, BOB, one.session_id)
        foreign.seq = 1
        for work in (foreign.gradient(1), foreign.get(made), foreign.create(byte_model)):
            with pytest.raises(NotFound):
                await work
        await h.clients.finish(ALICE, one.session_id, "success", "")
        with pytest.raises(SessionEnded):
            await one.gradient(1)
        with pytest.raises(SessionEnded):
            await h.clients.heartbeat(ALICE, one.session_id)
        assert h.sampling.over == [one.session_id]
        assert await one.get(made)


async def test_opened_again_it_goes_on(tmp_path: Path, byte_model: Path) -> None:
    async with house(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        first = await one.gradient(1)
        answer = await one.get(first)
        await one.gradient(2)
        await one.get(await one.step(ADAM))
        kept = await one.gradient(3)
        await one.get(kept)
    async with house(tmp_path, byte_model) as h:
        one.house = h
        assert (await one.get(first)) == answer
        last = [await one.gradient(4), await one.step()]
        assert (await one.get(last[1])).version == 2
        there = adapter(h, one.model_id)
    async with house(tmp_path / "undisturbed", byte_model) as h:
        two = await Client.open(h)
        await two.create(byte_model)
        await asyncio.gather(two.gradient(1), two.gradient(2))
        await two.step()
        await two.gradient(3)
        await two.gradient(4)
        await two.get(await two.step())
        assert adapter(h, two.model_id) == there


async def test_a_body_is_kept_only_while_it_may_be_carried_out_again(
    tmp_path: Path, byte_model: Path
) -> None:
    async with house(tmp_path, byte_model) as h:
        one = await Client.open(h)
        asked = [
            await one.create(byte_model),
            await one.send(Kind.FORWARD, replace(batch(1), train=False)),
            await one.gradient(1),
            await one.gradient(2, loss="no such loss"),
            await one.send(Kind.SAVE_WEIGHTS, SAVE),
        ]
        for request_id in asked:
            await one.end(request_id)

        def kept() -> list[int]:
            return [n for n in range(6) if h.store.requests.body(one.model_id, n) is not None]

        assert kept() == [2], "a gradient that no version has"
        await one.get(await one.step())
        assert kept() == []


async def test_bodies_go_piece_by_piece_with_a_step_and_at_once_with_their_session(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (requests_module, endings):
        monkeypatch.setattr(module, "PIECE_BYTES", 1)
    async with house(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        for seed in range(4):
            await one.gradient(seed)
        await one.get(await one.step())

        async def kept() -> dict[int, int]:
            return await asyncio.to_thread(h.store.requests.sizes, one.model_id)

        async def none() -> None:
            async with asyncio.timeout(SOON_S):
                while await kept():  # noqa: ASYNC110 - no event of anybody's
                    await asyncio.sleep(0.005)

        await none()
        await one.get(await one.gradient(5))
        assert await kept(), "it may have to be made again"
        await h.clients.finish(ALICE, one.session_id, "success", "")
        await none()


async def test_bodies_that_a_kill_has_left_behind_a_step_do_not_count(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        with monkeypatch.context() as patched:
            patched.setattr(h.store.requests, "shed", lambda *_: 0)
            await one.gradient(1)
            await one.get(await one.step())
        assert h.store.requests.sizes(one.model_id)
    async with house(tmp_path, byte_model) as h:
        one.house = h
        await one.get(await one.gradient(2))
        assert list(h.store.requests.sizes(one.model_id)) == [one.seq]


async def test_many_models_of_a_tenant_hold_no_more_than_a_few_may(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "MAX_REQUESTS", 3)
    async with house(tmp_path, byte_model) as h:
        many = [await Client.open(h) for _ in range(held.MODELS + 2)]
        for one in many:
            await one.get(await one.create(byte_model))
        for one in many[: held.MODELS + 1]:
            for seed in range(2):
                await one.get(await one.gradient(seed))
        for seed in range(2):
            await many[-1].get(await many[-1].gradient(seed))
        with pytest.raises(Limited, match="all your models"):
            await many[-1].gradient(7)
        many[-1].seq -= 1
        neighbour = await Client.open(h, BOB)
        await neighbour.create(byte_model)
        await neighbour.get(await neighbour.gradient(1))
        await many[0].get(await many[0].step())
        await many[-1].get(await many[-1].gradient(7))
