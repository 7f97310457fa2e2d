"""Layers computed again in the backward pass: the same bits from less memory."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from random_models import FAMILIES, random_model
from test_trainer_ops import ARCH
from trainer_support import RUN, drain, make_data, relative_l2, stirred

from plait.core.operations import Datum
from plait.core.runs import LoraSpec
from plait.engines.factory import EngineConfig
from plait.engines.torch.build import build
from plait.engines.torch.train import attention
from plait.engines.torch.train import model as forward
from plait.engines.torch.train.packing import SLACK, train_cost
from plait.engines.torch.trainer import TorchTrain

LENGTHS = [12, 40, 25, 40, 7, 33]
LOSS = "importance_sampling"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("recompute") / "model")


def made(model: Path, **options) -> TorchTrain:
    engine = TorchTrain(model, **options)
    engine.create(RUN, LoraSpec(rank=4, seed=1))
    stirred(engine)
    return engine


def gradient(engine: TorchTrain, data: list[Datum]) -> torch.Tensor:
    drain(engine.forward_backward(RUN, data, LOSS, {}))
    return engine._run(RUN).grad.clone()


def alike(n: int) -> list[Datum]:
    """Sequences with their first 20 tokens in common."""
    data = make_data([40] * n)
    return [
        replace(d, input_tokens=[*data[0].input_tokens[:20], *d.input_tokens[20:]]) for d in data
    ]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_gradients_are_equal_to_the_bit(family: str, tmp_path: Path) -> None:
    model = random_model(tmp_path / "model", family)
    data = [*make_data(LENGTHS), *alike(3)]
    plain, again = (gradient(made(model, recompute=r), data) for r in (False, True))
    assert torch.equal(plain, again)
    assert plain.abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_so_they_are_with_the_fused_kernel_and_in_half_precision(
    model: Path, monkeypatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(attention, "SHORT", 16)
    grads = [gradient(made(model, recompute=r, dtype=dtype), alike(3)) for r in (False, True)]
    assert torch.equal(*grads)


class Kept:
    """Bytes that autograd holds on to, the model's own weights left out."""

    def __init__(self, engine: TorchTrain) -> None:
        w = engine._model.weights
        frozen = [w.embed, w.head, w.norm]
        for layer in w.layers:
            frozen += [getattr(layer, name) for name in layer.__dataclass_fields__]
        self._frozen = {t.untyped_storage().data_ptr() for t in frozen if t is not None}
        self._seen: dict[int, torch.Tensor] = {}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._frozen:
            self._seen[storage.data_ptr()] = tensor
        return tensor

    @property
    def n_bytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self._seen.values())


def kept(model: Path, monkeypatch, recompute: bool) -> int:
    """Bytes alive between the forward and the backward pass of one micro-batch."""
    from plait.engines.torch import own as module

    engine = made(model, recompute=recompute)
    counted = Kept(engine)
    real = module.logprobs

    def watched(*args, **options):
        with torch.autograd.graph.saved_tensors_hooks(counted.pack, lambda tensor: tensor):
            return real(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, "logprobs", watched)
        drain(engine.forward_backward(RUN, make_data([40] * 4), LOSS, {}))
    return counted.n_bytes


def test_what_is_kept_is_what_the_cost_says(model: Path, monkeypatch) -> None:
    arch, n = made(model)._arch, 4 * 40
    passing = 4 * arch.inter + 4 * arch.hidden
    one_layer = 2 * arch.hidden + 2 * arch.q_size + 2 * arch.kv_size + 2 * arch.inter
    costs = [train_cost(arch, 4, recompute=r).token_bytes // 4 - passing for r in (False, True)]
    # Beside it the adapters' inner products, and the last norm's input and the head's slopes at
    # scored positions: small in a real model, and left to the allocator's slack. The last layer
    # keeps a little less, for it goes on with scored positions alone.
    ranks = arch.n_layers * 7 * 4
    head = 2 * sum(sum(d.mask) for d in make_data([40] * 4)) * arch.hidden
    plain, again = (kept(model, monkeypatch, recompute) for recompute in (False, True))
    assert plain == pytest.approx(4 * (n * (costs[0] + ranks) + head), rel=0.03)
    assert again == pytest.approx(4 * (n * (costs[1] - one_layer) + head), rel=0.03)
    assert again < 0.25 * plain


def test_the_same_budget_takes_larger_micro_batches(model: Path) -> None:
    deep = replace(ARCH, n_layers=30)
    costs = [train_cost(deep, 4, recompute=r).of(100, 2, 50) for r in (False, True)]
    assert costs[1] < costs[0] / 3
    data = make_data([40] * 12)
    six = made(model, recompute=True)._train_cost.of(6 * 40, 6, 40)
    budget = int(SLACK * six) + 2
    plain, again = (made(model, memory_bytes=budget, recompute=r) for r in (False, True))
    n_steps = [len(list(e.forward_backward(RUN, data, LOSS, {}))) for e in (plain, again)]
    assert n_steps == [3, 2]
    assert relative_l2(again._run(RUN).grad, plain._run(RUN).grad) < 1e-6


def test_memory_that_runs_out_while_computing_again_counts_nothing_twice(
    model: Path, monkeypatch
) -> None:
    data = make_data(LENGTHS)
    want = gradient(made(model), data)
    engine = made(model, recompute=True)
    real, calls = forward.gated_linear, []

    def starving(*args, **options):
        calls.append("")
        if len(calls) == engine.shape.n_layers + 2:  # the second layer of the backward pass
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(*args, **options)

    monkeypatch.setattr(forward, "gated_linear", starving)
    drain(engine.forward_backward(RUN, data, LOSS, {}))
    assert len(calls) > 2 * engine.shape.n_layers
    assert relative_l2(engine._run(RUN).grad, want) < 1e-5


def test_control_can_be_taken_between_layers_as_without(model: Path) -> None:
    counts = []
    for recompute in (False, True):
        calls: list[str] = []
        engine = made(model, recompute=recompute, on_layer=lambda seen=calls: seen.append(""))
        gradient(engine, make_data([9]))
        counts.append(len(calls))
    assert counts[0] == counts[1] == 2 * engine.shape.n_layers - 1


def test_scoring_computes_nothing_twice(model: Path, monkeypatch) -> None:
    monkeypatch.setattr(forward, "checkpoint", None)
    drain(made(model, recompute=True).forward(RUN, make_data([9]), adapter=True))


@pytest.mark.parametrize("recompute", [False, True])
def test_a_worker_takes_it_from_its_configuration(model: Path, recompute: bool) -> None:
    config = EngineConfig(
        model_dir=str(model),
        rollout=False,
        train=True,
        kv_blocks=1,
        block_size=4,
        max_seqs=1,
        train_memory_bytes=10**9,
        options={"recompute": float(recompute)},
    )
    assert build(config).train._model._recompute is recompute
