"""Codec: how this door writes work and answers; what ``service.lines`` is given as its codec.

A stored body is what the client sent (JSON, or protobuf for passes over data); a stored answer is
what the client will be sent. Pure, so a body means the same after a restart.
"""

import json
from hashlib import blake2b
from typing import Any

from plait.core.errors import RequestError
from plait.core.operations import AdamParams, ForwardResult, SampleResult, StepResult
from plait.core.runs import ATTENTION, HEAD, MLP, LoraSpec
from plait.service import paths, work
from plait.service.tinker_api import batches, bodies, samples
from plait.service.work import (
    Answer,
    Batch,
    CheckpointKind,
    Created,
    Kind,
    Loaded,
    LossMade,
    SamplerMade,
    SampleWork,
    Saved,
    Work,
)

ALPHA = 32.0
"""Of every adapter made through this API, which has no field for it: that of the official service,
for which its users' learning rates are chosen."""
PROTOBUF = frozenset({Kind.FORWARD, Kind.FORWARD_BACKWARD, Kind.SAMPLE})
"""Kinds whose answers are protobuf; the others' are JSON."""
AS_JSON = {
    Kind.FORWARD: batches.as_json,
    Kind.FORWARD_BACKWARD: batches.as_json,
    Kind.SAMPLE: samples.as_json,
}


class TinkerCodec:
    """Bodies and answers of the Tinker API."""

    def read(self, kind: Kind, body: bytes) -> Work:
        """Work from a stored body; RequestError on what cannot be read or is not supported."""
        match kind:
            case Kind.CREATE_MODEL:
                return _create(bodies.read(bodies.CreateModel, body))
            case Kind.LOAD_MODEL:
                return _load_model(bodies.read(bodies.LoadWeights, body))
            case Kind.FORWARD | Kind.FORWARD_BACKWARD:
                return batches.read(body)
            case Kind.OPTIM_STEP:
                return _step(bodies.read(bodies.OptimStep, body))
            case Kind.SAVE_WEIGHTS:
                return _save(bodies.read(bodies.SaveWeights, body))
            case Kind.SAVE_SAMPLER:
                return _save_sampler(bodies.read(bodies.SaveForSampler, body))
            case Kind.SAVE_EXTERNAL:
                return _save_external(bodies.read(bodies.SaveExternal, body))
            case Kind.LOAD_WEIGHTS:
                load = bodies.read(bodies.LoadWeights, body)
                return work.LoadCheckpoint(path=_path(load.path), optimizer=load.optimizer)
        raise RequestError(f"a request of kind {kind} has no body")

    def write(self, kind: Kind, work: Work | SampleWork | None, answer: Answer) -> bytes:
        """The body that answers it."""
        match answer:
            case ForwardResult():
                assert isinstance(work, Batch)
                return batches.write(work, answer)
            case SampleResult():
                assert isinstance(work, SampleWork)
                return samples.write(work, answer)
            case StepResult():
                return _json({"metrics": answer.metrics})
            case Created(path=""):
                return _json({"type": "create_model", "model_id": answer.model_id})
            case Created():
                told = {"type": "load_weights", "model_id": answer.model_id, "path": answer.path}
                return _json(told)
            case Loaded():
                return _json({"type": "load_weights", "path": answer.path})
            case SamplerMade():
                return _json(
                    {"type": "save_weights_for_sampler", "sampling_session_id": answer.sampler_id}
                )
            case LossMade():
                return _json({"type": str(kind), "loss_id": answer.loss_id})
            case Saved():
                size = {"size_bytes": answer.size_bytes} if kind is Kind.SAVE_EXTERNAL else {}
                return _json({"type": str(kind), "path": answer.path, **size})


def _create(body: bodies.CreateModel) -> work.CreateModel:
    _adam_only(body.optimizer_config)
    asked = body.lora_config
    targets: tuple[str, ...] = ()
    for wanted, names in (
        (asked.train_attn, ATTENTION),
        (asked.train_mlp, MLP),
        (asked.train_unembed, (HEAD,)),
    ):
        targets += names if wanted else ()
    if not targets:
        raise RequestError("train_attn, train_mlp and train_unembed are all false: train something")
    seed = asked.seed
    if seed is None:
        # Fixed by the request, so that a replay makes the same weights.
        key = f"{body.session_id}:{body.model_seq_id}".encode()
        seed = int.from_bytes(blake2b(key, digest_size=7).digest())
    return work.CreateModel(
        base_model=body.base_model,
        lora=LoraSpec(rank=asked.rank, alpha=ALPHA, targets=targets, seed=seed),
        user_metadata=body.user_metadata or {},
    )


def _load_model(body: bodies.LoadWeights) -> work.LoadModel:
    _adam_only(body.optimizer_config or bodies.OptimizerConfig())
    return work.LoadModel(
        path=_path(body.path),
        optimizer=body.optimizer,
        base_model=body.base_model,
        user_metadata=body.user_metadata or {},
    )


def _step(body: bodies.OptimStep) -> work.Step:
    if body.optimizer_params is not None:
        kind = str(body.optimizer_params.get("type"))[:60]
        raise RequestError(f"optimizer {kind!r} is not supported: this server has adamw")
    given = body.adam_params or bodies.Adam()
    return work.Step(adam=AdamParams(**given.model_dump()))


def _save(body: bodies.SaveWeights) -> work.SaveCheckpoint:
    return work.SaveCheckpoint(
        name=_name(body, body.path),
        kind=CheckpointKind.TRAINING,
        overwrite=body.overwrite,
        ttl_s=body.ttl_seconds,
        user_metadata=body.user_metadata or {},
    )


def _save_sampler(body: bodies.SaveForSampler) -> work.SaveCheckpoint | work.Snapshot:
    if body.path is None and body.sampling_session_seq_id is not None:
        return work.Snapshot(
            sampler_seq=body.sampling_session_seq_id, inflight=body.kind == "inflight"
        )
    return work.SaveCheckpoint(
        name=_name(body, body.path),
        kind=CheckpointKind.SAMPLER,
        optimizer=False,
        ttl_s=body.ttl_seconds,
        user_metadata=body.user_metadata or {},
    )


def _save_external(body: bodies.SaveExternal) -> work.SaveCheckpoint:
    if body.age_encryption_recipients:
        raise RequestError("age_encryption_recipients is not supported: encrypt what you download")
    return work.SaveCheckpoint(
        name=_name(body, body.path),
        kind=CheckpointKind.EXTERNAL,
        optimizer=False,
        ttl_s=body.ttl_seconds,
    )


def _name(body: bodies.Numbered, name: str | None) -> str:
    return paths.checked(f"{body.seq_id:06d}" if name is None else name)


def _path(path: str) -> str:
    return str(paths.parse(path))


def _adam_only(config: bodies.OptimizerConfig) -> None:
    if config.type != "adamw":
        raise RequestError(
            f"optimizer {config.type[:60]!r} is not supported: this server has adamw"
        )


def _json(told: dict[str, Any]) -> bytes:
    return json.dumps(told, allow_nan=False).encode()
