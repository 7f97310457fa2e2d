"""The engine through ``transformers`` beside what it computes: sharing, disk, adapters, caches."""

import gc
import weakref
from pathlib import Path

import pytest
import torch
from fallback_support import PEFT_WARNINGS, TOLERANCE, reference, stir, with_prefixes
from foreign_models import foreign_model
from random_models import random_model
from safetensors.torch import load_file, save_file
from trainer_support import RUN, drain, make_data, reference_logprobs, relative_l2, saved_by_peft

from plait.core.errors import ModelError, RequestError
from plait.core.ids import OpId, RunId
from plait.core.operations import AdamParams, ForwardBackward, Sample, SamplingParams
from plait.core.runs import HEAD, LoraSpec
from plait.engines.torch.fallback import model as fallback_model
from plait.engines.torch.rollout import TorchRollout
from plait.engines.torch.train import packing
from plait.engines.torch.trainer import TorchTrain
from plait.models.shape import read_shape

pytestmark = PEFT_WARNINGS

ONE = SamplingParams(max_tokens=2)


def test_runs_share_a_pass_and_only_that(tmp_path: Path, monkeypatch) -> None:
    """Ranks and targets mixed in one micro-batch, as each run would learn alone; some blocks of the
    head are of two runs."""
    model = foreign_model(tmp_path / "model", "gemma2")
    specs = {
        RunId("a"): LoraSpec(rank=4, seed=1),
        RunId("b"): LoraSpec(rank=9, seed=2, targets=("v_proj", "down_proj", HEAD)),
        RunId("c"): LoraSpec(rank=2, seed=3, targets=(HEAD,)),
    }
    engine = TorchTrain(model)
    gradients: dict[RunId, list[torch.Tensor]] = {}
    data = {run: make_data([20, 9, 20], seed=i) for i, run in enumerate(specs)}
    for run, spec in specs.items():
        engine.create(run, spec)
        params = engine._run(run)
        stir(params, 0.05)
        drain(engine.forward_backward(run, data[run], "cross_entropy", {}))
        gradients[run] = [params.grad.clone()]
        params.grad.zero_()
    ops = [
        ForwardBackward(
            op_id=OpId(run), run_id=run, seq=1, data=data[run], loss="cross_entropy", loss_config={}
        )
        for run in specs
    ]
    monkeypatch.setattr(fallback_model, "block_rows", lambda _: 7)
    (step,) = engine.forward_backward_many(ops)
    assert set(step.tokens_by_run) == set(specs)
    for run, (alone,) in gradients.items():
        assert relative_l2(engine._run(run).grad, alone) <= 1e-5


def test_recomputing_layers_gives_the_same_gradient(tmp_path: Path) -> None:
    model = foreign_model(tmp_path / "model", "phi3")
    grads = []
    for recompute in (False, True):
        engine = TorchTrain(model, recompute=recompute)
        engine.create(RUN, LoraSpec(rank=4, seed=1, targets=engine._arch.targets))
        stir(engine._run(RUN), 0.05)
        drain(engine.forward_backward(RUN, with_prefixes(), "cross_entropy", {}))
        grads.append(engine._run(RUN).grad)
    assert torch.equal(*grads)
    assert grads[0].abs().max() > 0


def test_micro_batches_go_one_after_the_other(tmp_path: Path, monkeypatch) -> None:
    """However many lanes are asked for: a model of transformers has one pass under way."""
    monkeypatch.setattr(packing, "LANE_TOKENS", 1)
    model, data = foreign_model(tmp_path / "model", "phi3"), with_prefixes()
    grads = []
    for lanes in (1, 2):
        engine = TorchTrain(model, max_tokens=60, lanes=lanes)
        engine.create(RUN, LoraSpec(rank=4, seed=1, targets=engine._arch.targets))
        stir(engine._run(RUN), 0.05)
        assert len(list(engine.forward_backward(RUN, data, "cross_entropy", {}))) > 1
        grads.append(engine._run(RUN).grad)
    assert torch.equal(*grads)
    assert grads[0].abs().max() > 0


def test_a_run_goes_on_from_disk(tmp_path: Path) -> None:
    model = foreign_model(tmp_path / "model", "gpt-neox")
    engine, other = TorchTrain(model), TorchTrain(model)
    engine.create(RUN, LoraSpec(rank=4, seed=1))
    adam = AdamParams(learning_rate=1e-2)

    def step(e: TorchTrain) -> torch.Tensor:
        drain(e.forward_backward(RUN, make_data([12, 20]), "cross_entropy", {}))
        e.optim_step(RUN, adam)
        return e._run(RUN).flat

    step(engine)
    (tmp_path / "run").mkdir()
    engine.save(RUN, str(tmp_path / "run"), optimizer=True)
    other.load(RUN, str(tmp_path / "run"), optimizer=True)
    assert torch.equal(step(engine), step(other))
    assert other._run(RUN).spec == engine._run(RUN).spec


def test_moments_of_the_other_way_are_refused(tmp_path: Path) -> None:
    """The two ways keep a run's matrices in another order."""
    model = random_model(tmp_path / "model")
    engine, other = TorchTrain(model), TorchTrain(model, by_transformers=True)
    engine.create(RUN, LoraSpec(rank=4))
    (tmp_path / "run").mkdir()
    engine.save(RUN, str(tmp_path / "run"), optimizer=True)
    with pytest.raises(ModelError, match="load it with optimizer=False"):
        other.load(RUN, str(tmp_path / "run"), optimizer=True)


def test_targets_are_all_linear_layers_but_the_head_unless_chosen(tmp_path: Path) -> None:
    engine = TorchTrain(foreign_model(tmp_path / "model", "gpt-neox"))
    engine.create(RUN, LoraSpec(rank=2))
    names = {p.module.rpartition(".")[2] for p in engine._run(RUN).parts}
    assert names == {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}
    engine.create(RunId("b"), LoraSpec(rank=2, targets=("dense",)))
    assert {p.module for p in engine._run(RunId("b")).parts} == {
        f"gpt_neox.layers.{i}.attention.dense" for i in range(2)
    }
    with pytest.raises(RequestError, match=r"'query_keys'.*did you mean query_key_value"):
        engine.create(RunId("c"), LoraSpec(targets=("query_keys",)))
    engine.create(RunId("c"), LoraSpec(rank=2, targets=("dense", "lm_head")))
    assert engine._run(RunId("c")).parts[-1].module == "lm_head"
    with pytest.raises(RequestError, match="'embed_out' matches no linear layer"):
        engine.create(RunId("d"), LoraSpec(targets=("embed_out",)))


def test_a_head_that_peft_has_saved_is_taken_with_its_own_base_alone(tmp_path: Path) -> None:
    model, folder = foreign_model(tmp_path / "model", "gemma2"), tmp_path / "theirs"
    theirs = saved_by_peft(model, folder)
    train, data = TorchTrain(model), make_data([12, 20])
    train.load(RUN, str(folder), optimizer=False)
    assert set(train._run(RUN).spec.targets) == {"q_proj", "down_proj", HEAD}
    found = drain(train.forward(RUN, data, adapter=True)).logprobs
    for ours, datum in zip(found, data, strict=True):
        with torch.no_grad():
            want = reference_logprobs(theirs, datum)
        assert (torch.tensor(ours) - want).abs().max() <= TOLERANCE
    rollout_of(model).load_adapter(RUN, 1, str(folder))
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors[f"base_model.model.{HEAD}.base_layer.weight"][5, 5] += 0.1
    save_file(tensors, file, metadata={"format": "pt"})
    for load in (
        lambda: train.load(RUN, str(folder), optimizer=False),
        lambda: rollout_of(model).load_adapter(RUN, 1, str(folder)),
    ):
        with pytest.raises(
            ModelError, match=r"lm_head\.base_layer\.weight is not the base model's"
        ):
            load()


def test_its_decode_steps_are_never_recorded(tmp_path: Path) -> None:
    engine = rollout_of(foreign_model(tmp_path / "model", "olmo2"), graphs=True)
    assert engine._graphs is None
    engine.add(Sample(op_id=OpId("x"), run_id=RUN, version=None, prompt=(1,), params=ONE))
    while engine.has_work():
        finished = engine.step().finished
    assert len(finished[0][1].samples[0].tokens) == ONE.max_tokens


def test_half_precision_is_converted_once_and_mapped(tmp_path: Path) -> None:
    model = foreign_model(tmp_path / "model", "olmo2", dtype=torch.bfloat16)
    cache = tmp_path / "cache"
    for _ in range(2):
        engine = TorchRollout(model, n_blocks=8, max_seqs=1, max_batch_tokens=8, cache=cache)
        assert engine._model.dtype == torch.float32
    (copy,) = (p for p in (cache / "weights").iterdir() if p.is_dir())
    assert any(str(copy) in line for line in Path("/proc/self/maps").read_text().splitlines())


def rollout_of(model: Path, **how) -> TorchRollout:
    return TorchRollout(model, n_blocks=8, max_seqs=1, max_batch_tokens=8, **how)


def test_a_cache_goes_with_its_engine(tmp_path: Path) -> None:
    """Though transformers' registries keep what was registered."""
    engine = rollout_of(foreign_model(tmp_path / "model", "olmo2"))
    engine.add(Sample(op_id=OpId("x"), run_id=RUN, version=None, prompt=(1,), params=ONE))
    engine.step()
    cache = weakref.ref(engine._kv)
    del engine
    gc.collect()
    assert cache() is None


def test_threads_may_change_at_every_layer_of_both_passes(tmp_path: Path) -> None:
    calls: list[None] = []
    engine = TorchTrain(
        foreign_model(tmp_path / "model", "olmo2"), on_layer=lambda: calls.append(None)
    )
    engine.create(RUN, LoraSpec())
    assert not calls
    drain(engine.forward_backward(RUN, make_data([9]), "cross_entropy", {}))
    assert len(calls) == 2 * engine.shape.n_layers


def test_numbers_come_from_the_files(tmp_path: Path) -> None:
    shape = read_shape(foreign_model(tmp_path, "gpt-neox"))
    model = reference(tmp_path, None)
    assert shape.n_params == sum(p.numel() for p in model.parameters())
    assert (shape.n_layers, shape.n_kv_heads, shape.head_dim) == (2, 6, 8)
    assert set(shape.linear_layers) == {
        "query_key_value",
        "dense",
        "dense_h_to_4h",
        "dense_4h_to_h",
        "lm_head",
    }
