"""Houses for tests: on the scripted engine, spoken to through the ports with pickled work."""

import pickle
from pathlib import Path
from typing import Any

from launches import SCRIPTED

from plait.core.ids import TenantId
from plait.core.operations import AdamParams, Datum
from plait.core.runs import LoraSpec
from plait.service.house import House
from plait.service.ports import Failed, Ready, Waiting, Who
from plait.service.work import Answer, Batch, CreateModel, Kind, SampleWork, Step, Work

ALICE, BOB = Who(tenant_id=TenantId("alice")), Who(tenant_id=TenantId("bob"))
SOON_S = 60.0
ADAM = AdamParams(learning_rate=1e-2)


class PickleCodec:
    """Work and answers as Python has them."""

    def read(self, kind: Kind, body: bytes) -> Work:
        return pickle.loads(body)

    def write(self, kind: Kind, work: Work | SampleWork, answer: Answer) -> bytes:
        return pickle.dumps(answer)


class NoSamples:
    """Whose no request is."""

    def owns(self, request_id: str) -> bool:
        return False


class NoSampling:
    """Where nothing is sampled: snapshots are counted."""

    def __init__(self, house: House) -> None:
        self.samples = NoSamples()
        self.snapshots: list[tuple[str, int]] = []
        self.over: list[str] = []

    async def recover(self) -> None: ...

    async def close(self) -> None: ...

    async def snapshot(self, *, session_id: str, seq: int, version: int, **_: Any) -> str:
        sampler_id = f"{session_id}:sample:{seq}"
        if (sampler_id, version) not in self.snapshots:
            self.snapshots.append((sampler_id, version))
        return sampler_id

    async def advanced(self, model_id: str, version: int, directory: Path) -> None: ...

    async def end_session(self, session_id: str) -> None:
        self.over.append(session_id)


def house(directory: Path, model: Path, **over: Any) -> House:
    return House(
        directory,
        **{
            "models": [str(model)],
            "codec": PickleCodec(),
            "settings": SCRIPTED,
            "sampling": NoSampling,
            **over,
        },
    )


def datum(seed: int, n: int = 8) -> Datum:
    """A sequence that differs by seed."""
    tokens = tuple((seed * 31 + i * 7) % 200 for i in range(n + 1))
    return Datum(
        input_tokens=tokens[:-1],
        target_tokens=tokens[1:],
        mask=[True] * n,
        inputs={"weights": [1.0] * n},
    )


def batch(seed: int, loss: str = "cross_entropy") -> Batch:
    return Batch(data=(datum(seed), datum(seed + 1)), loss=loss, config={}, train=True)


class Client:
    """One model of one session, numbering its requests as the SDK does."""

    def __init__(self, house: House, who: Who, session_id: str, number: int = 0) -> None:
        self.house, self.who, self.session_id = house, who, session_id
        self.model_id = f"{session_id}:train:{number}"
        self.seq = 0

    @classmethod
    async def open(cls, house: House, who: Who = ALICE) -> "Client":
        await house.access.put_tenant(who.tenant_id)
        return cls(house, who, await house.clients.open_session(who, {}))

    async def create(self, model: str | Path, seed: int = 0) -> str:
        work = CreateModel(base_model=str(model), lora=LoraSpec(seed=seed))
        return await self.send(Kind.CREATE_MODEL, work, seq=0)

    async def send(self, kind: Kind, work: Work, *, seq: int | None = None) -> str:
        if seq is None:
            self.seq += 1
            seq = self.seq
        return await self.house.requests.submit(
            self.who, self.session_id, self.model_id, seq, kind, pickle.dumps(work)
        )

    async def gradient(self, seed: int, **over: Any) -> str:
        return await self.send(Kind.FORWARD_BACKWARD, batch(seed, **over))

    async def step(self, adam: AdamParams = ADAM) -> str:
        return await self.send(Kind.OPTIM_STEP, Step(adam=adam))

    async def get(self, request_id: str) -> Any:
        """The answer; fails with what it failed with."""
        outcome = await self.end(request_id)
        assert isinstance(outcome, Ready), outcome
        return pickle.loads(outcome.body)

    async def end(self, request_id: str) -> Ready | Failed:
        outcome = await self.house.requests.outcome(self.who, request_id, wait_s=SOON_S)
        assert not isinstance(outcome, Waiting), outcome
        return outcome


def adapter(house: House, model_id: str) -> dict[str, bytes]:
    """Files of a model's last committed version."""
    run_id = model_id.replace(":", ".")
    known = house.store.mutations.latest_version(run_id)
    assert known is not None
    spec = house.store.runs.get(run_id).spec
    folder = house.place(spec["base_model"]) / known.path
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
