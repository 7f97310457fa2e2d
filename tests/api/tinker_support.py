"""A raw client of the Tinker API: what the SDK sends, one request at a time."""

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from httpx import AsyncClient, Response

from plait.service.tinker_api import schema

URL = "http://plait.test"
SOON_S = 60.0
PROTOBUF = {"Content-Type": "application/x-protobuf"}
READS_PROTOBUF = {"Accept": "application/x-protobuf"}
PROMPT = [10, 20, 30, 40]


@dataclass(kw_only=True)
class Door:
    """Where clients come in, and what is served behind it."""

    client: Callable[[str], Awaitable[AsyncClient]]
    base_model: str
    house: Any = None

    async def session(self, tenant: str = "alice") -> "Session":
        """A client session of a tenant."""
        http = await self.client(tenant)
        told = await ok(http.post("/api/v1/create_session", json={"tags": [], "sdk_version": "0"}))
        return Session(http=http, session_id=told["session_id"], base_model=self.base_model)


@dataclass(kw_only=True)
class Session:
    http: AsyncClient
    session_id: str
    base_model: str
    models: Any = field(default_factory=itertools.count)
    samplers: Any = field(default_factory=itertools.count)

    async def post(self, path: str, /, **body: Any) -> Response:
        return await self.http.post(f"/api/v1/{path}", json=body)

    async def get(self, path: str, /, **params: Any) -> Any:
        return await ok(self.http.get(f"/api/v1/{path}", params=params))

    async def result(self, promise: Any) -> Any:
        """What became of a request: a message of protobuf, or what the JSON says."""
        request_id = promise["request_id"]
        while True:
            answer = await self.http.post(
                "/api/v1/retrieve_future",
                json={"request_id": request_id, "allow_metadata_only": False},
                headers=READS_PROTOBUF,
            )
            assert answer.status_code == 200, answer.text
            if answer.headers["content-type"] == "application/x-protobuf":
                kind = (
                    schema.SampleResponse
                    if ":sample:" in request_id
                    else schema.ForwardBackwardOutput
                )
                return kind.FromString(answer.content)
            if answer.json().get("type") != "try_again":
                return answer.json()

    async def model(self, **over: Any) -> "Model":
        """A new model."""
        number = next(self.models)
        promise = await ok(
            self.post(
                "create_model",
                **{
                    "session_id": self.session_id,
                    "model_seq_id": number,
                    "base_model": self.base_model,
                    "lora_config": {"rank": 4, "seed": 1, "train_unembed": False},
                    **over,
                },
            )
        )
        made = await self.result(promise)
        return Model(session=self, model_id=made["model_id"])

    async def sampler(self, **of: Any) -> str:
        """A sampler of a path or of a base model."""
        told = await ok(
            self.post(
                "create_sampling_session",
                session_id=self.session_id,
                sampling_session_seq_id=100 + next(self.samplers),
                **(of or {"base_model": self.base_model}),
            )
        )
        return told["sampling_session_id"]

    async def sample(self, sampler: str, seq: int = 0, **over: Any) -> Response:
        """Ask for a sample."""
        params = {"max_tokens": 4, "temperature": 1.0, "seed": 1, **over.pop("params", {})}
        return await self.post(
            "asample",
            sampling_session_id=sampler,
            seq_id=seq,
            prompt={"chunks": [{"type": "encoded_text", "tokens": PROMPT}]},
            sampling_params=params,
            **over,
        )


@dataclass(kw_only=True)
class Model:
    session: Session
    model_id: str
    seq: int = 0

    def number(self) -> int:
        self.seq += 1
        return self.seq

    async def send(self, path: str, /, *, seq: int | None = None, **body: Any) -> Response:
        """A numbered request."""
        seq = self.number() if seq is None else seq
        return await self.session.post(path, model_id=self.model_id, seq_id=seq, **body)

    async def data(self, *, seq: int | None = None, **over: Any) -> Response:
        """A forward_backward request in protobuf."""
        seq = self.number() if seq is None else seq
        message = gradient(self.model_id, seq, **over)
        return await self.session.http.post(
            "/api/v1/forward_backward", content=message.SerializeToString(), headers=PROTOBUF
        )

    async def carry_out(self, path: str, /, **body: Any) -> Any:
        """A numbered request and what became of it."""
        return await self.session.result(await ok(self.send(path, **body)))

    async def gradient(self, **over: Any) -> Any:
        """A gradient, or log-probs, and what became of it."""
        return await self.session.result(await ok(self.data(**over)))

    async def step(self) -> Any:
        """An optimizer step and what became of it."""
        return await self.carry_out("optim_step", adam_params={"learning_rate": 0.01})


def gradient(
    model_id: str, seq: int, *, loss: str = "cross_entropy", forward: bool = False, n: int = 1
):
    """A request for ``n`` data of 8 tokens."""
    message = schema.ForwardBackwardRequest(
        model_id=model_id, seq_id=seq, loss_fn=loss, forward_only=forward
    )
    for i in range(n):
        datum = message.data.add()
        tokens = np.arange(10, 18, dtype="<i4") + i % 100
        datum.model_input.add().encoded_text.tokens = tokens.tobytes()
        put(datum, "target_tokens", tokens.astype("<i8") + 1)
        put(datum, "weights", np.array([0, 0, 1, 1, 1, 1, 1, 1], "<f4"))
    return message


def put(datum: Any, name: str, values: np.ndarray) -> None:
    """A loss input."""
    tensor = datum.loss_fn_inputs[name]
    tensor.dense, tensor.shape[:] = values.tobytes(), values.shape
    tensor.dtype = schema.FLOAT32 if values.dtype.kind == "f" else schema.INT64


def logprobs(out: Any) -> list[float]:
    """Of a gradient's answer."""
    (record,) = out.loss_fn_outputs
    return np.frombuffer(record.fields["logprobs"].data, "<f4").tolist()


async def ok(answer: Awaitable[Response] | Response) -> Any:
    """An answer's JSON, if it is good."""
    got = answer if isinstance(answer, Response) else await answer
    assert got.status_code in (200, 204), got.text
    return got.json() if got.content else None
