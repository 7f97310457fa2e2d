"""House: what has been learned by a client's own loss is made again after whatever end."""

import time
from pathlib import Path

import psutil
import pytest
from custom_support import SQUARES, by_hand, node, ref
from service_support import ALICE, Client, adapter, batch, house

from plait.core.custom_graphs import read
from plait.core.errors import CapacityError, RequestError
from plait.service.custom_losses import MAX_LOSSES
from plait.service.house import House
from plait.service.work import Batch, Kind
from plait.store.losses import LossRow

LOSS = read(by_hand(*SQUARES))


async def _create(h: House, client: Client) -> str:
    return await h.requests.create_loss(ALICE, client.session_id, 0, LOSS)


def _work(seed: int, loss_id: str) -> Batch:
    return Batch(data=batch(seed).data, loss="custom", config={}, train=True, loss_id=loss_id)


async def _begun(h: House, model: Path) -> tuple[Client, str, str]:
    """A client whose model has one gradient of a loss of its own; the loss, the request."""
    one = await Client.open(h)
    loss_id = await _create(h, one)
    await one.create(model)
    asked = await one.send(Kind.FORWARD_BACKWARD, _work(1, loss_id))
    await one.get(asked)
    return one, loss_id, asked


async def _undisturbed(directory: Path, model: Path) -> dict[str, bytes]:
    async with house(directory, model) as h:
        one, *_ = await _begun(h, model)
        await one.get(await one.step())
        return adapter(h, one.model_id)


async def test_a_step_asked_for_at_once_comes_after_it(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loss is looked up first, on a disk that takes far longer than asking for a step."""
    async with house(tmp_path / "a", byte_model) as h:
        one = await Client.open(h)
        loss_id = await _create(h, one)
        await one.get(await one.create(byte_model))
        find = h.store.losses.find

        def slowly(session_id: str, seq: int) -> LossRow | None:
            time.sleep(0.5)
            return find(session_id, seq)

        monkeypatch.setattr(h.store.losses, "find", slowly)
        await one.send(Kind.FORWARD_BACKWARD, _work(1, loss_id))
        assert (await one.get(await one.step())).metrics["grad_norm:mean"] > 0
        there = adapter(h, one.model_id)
    assert there == await _undisturbed(tmp_path / "b", byte_model)


async def test_a_worker_that_dies_costs_nothing(tmp_path: Path, byte_model: Path) -> None:
    async with house(tmp_path / "a", byte_model) as h:
        one, *_ = await _begun(h, byte_model)
        for process in psutil.Process().children(recursive=True):
            if any("plait.runtime.worker" in part for part in process.cmdline()):
                process.kill()
        await one.get(await one.step())
        there = adapter(h, one.model_id)
    assert there == await _undisturbed(tmp_path / "b", byte_model)


async def test_another_life_of_the_house_has_the_loss(tmp_path: Path, byte_model: Path) -> None:
    async with house(tmp_path / "a", byte_model) as h:
        one, loss_id, kept = await _begun(h, byte_model)
        answer = await one.get(kept)
    async with house(tmp_path / "a", byte_model) as h:
        one.house = h
        await one.get(await one.step())
        assert await one.get(kept) == answer
        there = adapter(h, one.model_id)
        await one.get(await one.send(Kind.FORWARD_BACKWARD, _work(2, loss_id)))
    assert there == await _undisturbed(tmp_path / "b", byte_model)


async def test_a_session_has_so_many_of_so_many_bytes(tmp_path: Path, byte_model: Path) -> None:
    async with house(tmp_path, byte_model) as h:
        one, other = await Client.open(h), await Client.open(h)
        for number in range(MAX_LOSSES):
            await h.requests.create_loss(ALICE, one.session_id, number, LOSS)
        with pytest.raises(CapacityError, match="64 custom losses") as full:
            await h.requests.create_loss(ALICE, one.session_id, MAX_LOSSES, LOSS)
        assert full.value.http_status == 422, "not 429: the client would ask again for minutes"
        assert await h.requests.create_loss(ALICE, one.session_id, 5, LOSS), "the original"
        assert await h.requests.create_loss(ALICE, other.session_id, MAX_LOSSES, LOSS)
        many = [node(f"n{i}", "torch.cat", [ref("logprobs")] * 250) for i in range(30)]
        with pytest.raises(RequestError, match="bytes: at most"):
            await h.requests.create_loss(ALICE, other.session_id, 0, read(by_hand(*many, *SQUARES)))
