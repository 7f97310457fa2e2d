import json

import pytest

from plait.core.errors import RequestError
from plait.core.operations import AdamParams, StepResult
from plait.core.runs import ALL_LINEAR, ATTENTION, HEAD, MLP
from plait.service import work
from plait.service.tinker_api.bodies import MAX_TTL_S
from plait.service.tinker_api.codec import ALPHA, TinkerCodec
from plait.service.work import CheckpointKind, Kind

CODEC = TinkerCodec()
NUMBER = {"model_id": "s-1:train:0", "seq_id": 4}
MODEL = {"session_id": "s-1", "model_seq_id": 0, "base_model": "tiny"}
PATH = "tinker://s-1:train:0/weights/ck"


def read(kind: Kind, /, **told) -> work.Work:
    return CODEC.read(kind, json.dumps(told).encode())


def test_an_adapter_has_the_parts_that_are_asked_for() -> None:
    made = read(Kind.CREATE_MODEL, **MODEL, lora_config={"rank": 4, "seed": 3})
    assert isinstance(made, work.CreateModel)
    lora = made.lora
    assert (lora.rank, lora.alpha, lora.seed, lora.targets) == (4, ALPHA, 3, (*ALL_LINEAR, HEAD))
    for off, targets in (
        ({"train_unembed": False}, ALL_LINEAR),
        ({"train_unembed": False, "train_mlp": False}, ATTENTION),
        ({"train_attn": False}, (*MLP, HEAD)),
    ):
        made = read(Kind.CREATE_MODEL, **MODEL, lora_config=off)
        assert isinstance(made, work.CreateModel)
        assert made.lora.targets == targets


def test_a_seed_that_is_not_given_is_the_models_own() -> None:
    seeds = [
        read(Kind.CREATE_MODEL, **{**MODEL, "model_seq_id": n}).lora.seed  # type: ignore[union-attr]
        for n in (0, 1, 0)
    ]
    assert seeds[0] == seeds[2] != seeds[1]


def test_an_optimizer_step_has_the_clients_defaults() -> None:
    step = read(Kind.OPTIM_STEP, **NUMBER, adam_params={"learning_rate": 0.5, "of_tomorrow": 1})
    assert step == work.Step(adam=AdamParams(learning_rate=0.5))
    assert read(Kind.OPTIM_STEP, **NUMBER) == work.Step(adam=AdamParams(learning_rate=1e-4))


def test_checkpoints_are_named_and_kept() -> None:
    told = {"path": "ck", "ttl_seconds": 60, "overwrite": True, "user_metadata": {"a": "b"}}
    assert read(Kind.SAVE_WEIGHTS, **NUMBER, **told) == work.SaveCheckpoint(
        name="ck",
        kind=CheckpointKind.TRAINING,
        ttl_s=60.0,
        overwrite=True,
        user_metadata={"a": "b"},
    )
    named = work.SaveCheckpoint(name="ck", kind=CheckpointKind.SAMPLER, optimizer=False)
    assert read(Kind.SAVE_SAMPLER, **NUMBER, path="ck") == named
    external = work.SaveCheckpoint(name="ck", kind=CheckpointKind.EXTERNAL, optimizer=False)
    assert read(Kind.SAVE_EXTERNAL, **NUMBER, path="ck") == external
    unnamed = read(Kind.SAVE_WEIGHTS, **NUMBER)
    assert isinstance(unnamed, work.SaveCheckpoint)
    assert unnamed.name == "000004"


@pytest.mark.parametrize(("kind", "inflight"), [("snapshot", False), ("inflight", True)])
def test_an_ephemeral_save_is_a_snapshot(kind: str, inflight: bool) -> None:
    told = read(Kind.SAVE_SAMPLER, **NUMBER, sampling_session_seq_id=2, kind=kind)
    assert told == work.Snapshot(sampler_seq=2, inflight=inflight)


def test_loads_are_read() -> None:
    load = read(Kind.LOAD_WEIGHTS, **NUMBER, path=PATH, optimizer=True)
    assert load == work.LoadCheckpoint(path=PATH, optimizer=True)
    made = read(Kind.LOAD_MODEL, session_id="s-2", model_seq_id=1, path=PATH, optimizer=False)
    assert made == work.LoadModel(path=PATH, optimizer=False)


@pytest.mark.parametrize(
    ("kind", "told", "why"),
    [
        (Kind.CREATE_MODEL, {**MODEL, "optimizer_config": {"type": "dimuon"}}, "has adamw"),
        (
            Kind.CREATE_MODEL,
            {
                **MODEL,
                "lora_config": {"train_attn": False, "train_mlp": False, "train_unembed": False},
            },
            "train something",
        ),
        (Kind.OPTIM_STEP, {**NUMBER, "optimizer_params": {"type": "dimuon"}}, "'dimuon'"),
        (Kind.OPTIM_STEP, {**NUMBER, "adam_params": {"learning_rate": "much"}}, "learning_rate"),
        (Kind.SAVE_WEIGHTS, {**NUMBER, "path": "../../etc"}, "checkpoint name"),
        (Kind.SAVE_WEIGHTS, {**NUMBER, "path": "a/b"}, "checkpoint name"),
        (Kind.SAVE_WEIGHTS, {**NUMBER, "path": ""}, "checkpoint name"),
        (Kind.SAVE_WEIGHTS, {**NUMBER, "ttl_seconds": -5}, "ttl_seconds"),
        (Kind.SAVE_WEIGHTS, {**NUMBER, "ttl_seconds": 2 * MAX_TTL_S}, "ttl_seconds"),
        (
            Kind.SAVE_EXTERNAL,
            {**NUMBER, "path": "a", "age_encryption_recipients": ["age1"]},
            "is not supported",
        ),
        (Kind.LOAD_WEIGHTS, {**NUMBER, "path": "/etc/passwd", "optimizer": True}, "no tinker://"),
        (
            Kind.LOAD_WEIGHTS,
            {**NUMBER, "path": "tinker://../weights/a", "optimizer": True},
            "no tinker://",
        ),
        (Kind.SKIPPED, {}, "has no body"),
    ],
)
def test_what_is_not_supported_is_refused(kind: Kind, told: dict, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        read(kind, **told)


def test_bodies_hold_no_numbers_that_are_none() -> None:
    body = json.dumps({**NUMBER, "adam_params": {"learning_rate": float("nan")}}).encode()
    with pytest.raises(RequestError, match="no JSON"):
        CODEC.read(Kind.OPTIM_STEP, body)
    with pytest.raises(RequestError, match="no JSON"):
        CODEC.read(Kind.OPTIM_STEP, b"{")
    with pytest.raises(RequestError, match="seq_id"):
        CODEC.read(Kind.OPTIM_STEP, b'{"model_id": "m", "seq_id": 0}')


ANYTHING = work.Step(adam=AdamParams(learning_rate=1.0))


@pytest.mark.parametrize(
    ("kind", "answer", "want"),
    [
        (
            Kind.CREATE_MODEL,
            work.Created(model_id="m"),
            {"type": "create_model", "model_id": "m"},
        ),
        (
            Kind.LOAD_MODEL,
            work.Created(model_id="m", path=PATH),
            {"type": "load_weights", "model_id": "m", "path": PATH},
        ),
        (Kind.LOAD_WEIGHTS, work.Loaded(path=PATH), {"type": "load_weights", "path": PATH}),
        (
            Kind.OPTIM_STEP,
            StepResult(version=3, metrics={"grad_norm:mean": 2.0}),
            {"metrics": {"grad_norm:mean": 2.0}},
        ),
        (Kind.SAVE_WEIGHTS, work.Saved(path=PATH), {"type": "save_weights", "path": PATH}),
        (
            Kind.SAVE_SAMPLER,
            work.SamplerMade(sampler_id="s"),
            {"type": "save_weights_for_sampler", "sampling_session_id": "s"},
        ),
        (
            Kind.SAVE_EXTERNAL,
            work.Saved(path=PATH, size_bytes=9),
            {"type": "save_weights_external", "path": PATH, "size_bytes": 9},
        ),
    ],
)
def test_answers_are_what_the_client_reads(kind: Kind, answer: work.Answer, want: dict) -> None:
    assert json.loads(CODEC.write(kind, ANYTHING, answer)) == want
