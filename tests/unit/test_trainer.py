"""What the trainer adds to its parts: micro-batches, failures, memory, several runs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from random_models import random_model
from trainer_support import RUN, drain, make_data, n_seqs, relative_l2, stirred

from plait.core.errors import EngineError, RequestError
from plait.core.ids import RunId
from plait.core.operations import AdamParams
from plait.core.runs import LoraSpec
from plait.engines.torch import own as module
from plait.engines.torch.trainer import TorchTrain

LENGTHS = [12, 40, 25, 40, 7, 33]
LOSS = "importance_sampling"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("trainer") / "model")


def made(model: Path, **options) -> TorchTrain:
    engine = TorchTrain(model, **options)
    engine.create(RUN, LoraSpec(rank=4, seed=1))
    stirred(engine)
    return engine


def gradient(engine: TorchTrain, data) -> torch.Tensor:
    drain(engine.forward_backward(RUN, data, LOSS, {}))
    return engine._run(RUN).grad.clone()


@pytest.mark.parametrize("max_tokens", [40, 64, 100])
def test_micro_batches_change_nothing_but_rounding(model: Path, max_tokens: int) -> None:
    whole, cut = made(model), made(model, max_tokens=max_tokens)
    data = make_data(LENGTHS)
    assert len(list(whole.forward_backward(RUN, data, LOSS, {}))) == 1
    steps = list(cut.forward_backward(RUN, data, LOSS, {}))
    assert len(steps) > 1
    assert all(s.n_tokens <= max_tokens for s in steps)
    assert relative_l2(cut._run(RUN).grad, whole._run(RUN).grad) < 1e-5
    results = [drain(e.forward_backward(RUN, data, LOSS, {})) for e in (whole, cut)]
    for a, b in zip(results[0].logprobs, results[1].logprobs, strict=True):
        assert a == pytest.approx(b, abs=1e-5)
    for name, value in results[0].metrics.items():
        assert results[1].metrics[name] == pytest.approx(value, rel=1e-4)


def test_the_memory_budget_makes_micro_batches(model: Path) -> None:
    engine = made(model, memory_bytes=1)
    assert len(list(engine.forward_backward(RUN, make_data(LENGTHS), LOSS, {}))) == len(LENGTHS)


def test_one_micro_batch_twice_gives_the_same_bits(model: Path) -> None:
    grads = [gradient(made(model), make_data(LENGTHS)) for _ in range(2)]
    assert torch.equal(*grads)


class Starving:
    """Stands before ``logprobs``: no memory for more than ``most`` sequences at once."""

    def __init__(self, most: int) -> None:
        self.most, self.sizes = most, []

    def __call__(self, weights, rope, batch, params, on_layer, **options):
        self.sizes.append(n_seqs(batch))
        if n_seqs(batch) > self.most:
            raise torch.OutOfMemoryError("out of memory")
        return self.real(weights, rope, batch, params, on_layer, **options)

    real = staticmethod(module.logprobs)


def test_out_of_memory_halves_the_micro_batch(model: Path, monkeypatch) -> None:
    data = make_data(LENGTHS)
    want = gradient(made(model), data)
    starving = Starving(most=2)
    monkeypatch.setattr(module, "logprobs", starving)
    engine = made(model)
    result = drain(engine.forward_backward(RUN, data, LOSS, {}))
    assert starving.sizes == [6, 3, 1, 2, 3, 1, 2]
    assert relative_l2(engine._run(RUN).grad, want) < 1e-5
    assert result.metrics["tokens:sum"] == sum(sum(d.mask) for d in data)


def test_out_of_memory_in_the_backward_pass_counts_nothing_twice(model: Path, monkeypatch) -> None:
    data = make_data(LENGTHS)
    want = gradient(made(model), data)
    engine = made(model)
    seen = []

    class Burst(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, params):
            ctx.params = params
            return x.view_as(x)

        @staticmethod
        def backward(ctx, d):
            seen.append(len(d))
            if len(seen) == 1:
                ctx.params[0].grad.add_(7)
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            return d, None

    real = module.logprobs
    monkeypatch.setattr(module, "logprobs", lambda *a, **k: Burst.apply(real(*a, **k), a[3]))
    result = drain(engine.forward_backward(RUN, data, LOSS, {}))
    assert len(seen) == 3
    assert relative_l2(engine._run(RUN).grad, want) < 1e-5
    assert result.metrics["tokens:sum"] == sum(sum(d.mask) for d in data)


def test_one_sequence_too_large_is_an_engine_error(model: Path, monkeypatch) -> None:
    engine = made(model)
    before = gradient(engine, make_data([9]))
    monkeypatch.setattr(module, "logprobs", Starving(most=0))
    with pytest.raises(EngineError, match="datum 1 alone"):
        drain(engine.forward_backward(RUN, make_data([8, 20]), LOSS, {}))
    assert torch.equal(engine._run(RUN).grad, before)


def test_other_runtime_errors_are_not_swallowed(model: Path, monkeypatch) -> None:
    def broken(*args, **options):
        raise RuntimeError("shape mismatch")

    monkeypatch.setattr(module, "logprobs", broken)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        drain(made(model).forward(RUN, make_data([8]), adapter=True))


def test_a_loss_that_is_not_finite_leaves_the_gradient(model: Path) -> None:
    engine = made(model, max_tokens=40)
    before = gradient(engine, make_data([9]))
    data = make_data([40, 8])
    # exp(logp - q) overflows; the sum of the first micro-batch is already in the gradient by then.
    data[1] = replace(data[1], inputs={**data[1].inputs, "logprobs": [-1e4] * 8})
    with pytest.raises(EngineError, match="not finite"):
        drain(engine.forward_backward(RUN, data, LOSS, {}))
    assert torch.equal(engine._run(RUN).grad, before)
    gradient(engine, make_data([9]))


def test_control_can_be_taken_between_layers_forwards_and_backwards(model: Path) -> None:
    calls: list[str] = []
    engine = made(model, on_layer=lambda: calls.append(""))
    n_layers = engine.shape.n_layers
    drain(engine.forward(RUN, make_data([9]), adapter=True))
    assert len(calls) == n_layers
    calls.clear()
    gradient(engine, make_data([9]))
    assert len(calls) == 2 * n_layers - 1  # the first layer's input needs no gradient


def test_tokens_behind_the_last_scored_one_cost_nothing(model: Path) -> None:
    engine = made(model)
    datum = make_data([40])[0]
    cut = replace(datum, mask=[3 <= i < 10 for i in range(40)])
    (step,) = engine.forward_backward(RUN, [cut], LOSS, {})
    assert step.n_tokens == 10


def test_a_run_is_untouched_by_another(model: Path) -> None:
    adam, other = AdamParams(learning_rate=0.01), RunId("other")
    data = make_data(LENGTHS)
    alone, shared = made(model), made(model)
    shared.create(other, LoraSpec(rank=8, seed=2))
    for step in range(3):
        for engine in (alone, shared):
            drain(engine.forward_backward(RUN, data, LOSS, {}))
        if step:
            drain(shared.forward_backward(other, make_data([30, 11], seed=5), "ppo", {}))
            shared.optim_step(other, adam)
        for engine in (alone, shared):
            engine.optim_step(RUN, adam)
    mine, theirs = alone._run(RUN), shared._run(RUN)
    for name in ("flat", "m", "v"):
        assert torch.equal(getattr(mine, name), getattr(theirs, name))
    assert (theirs.steps, shared._run(other).steps) == (3, 2)


def test_loading_never_lowers_a_resident_runs_version(model: Path, tmp_path: Path) -> None:
    engine = made(model)
    engine.save(RUN, str(tmp_path), optimizer=True)
    for _ in range(2):
        engine.optim_step(RUN, AdamParams(learning_rate=0.0))
    engine.load(RUN, str(tmp_path), optimizer=True)
    assert engine.optim_step(RUN, AdamParams(learning_rate=0.0)).version == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_tokens": [0.5] * 8}, "whole numbers"),
        ({"input_tokens": [-1] * 8}, "holds -1"),
        ({"target_tokens": [264] * 8}, "0 to 263"),
        ({"mask": [False] * 8}, "no position is scored"),
        ({"inputs": {"advantages": [1.0] * 8}}, "lacks the input 'logprobs'"),
        ({"inputs": {"advantages": [float("nan")] * 8, "logprobs": [0.0] * 8}}, "position 3"),
        ({"inputs": {"advantage": [1.0] * 8}}, "known: weights"),
    ],
)
def test_bad_data_is_refused_by_name(model: Path, change, message: str) -> None:
    engine = made(model)
    with pytest.raises(RequestError, match=message):
        drain(engine.forward_backward(RUN, [replace(make_data([8])[0], **change)], LOSS, {}))
    gradient(engine, make_data([8]))


def test_inputs_that_only_some_data_have_are_refused(model: Path) -> None:
    data = make_data([8, 8])
    del data[0].inputs["weights"]
    with pytest.raises(RequestError, match="all or none"):
        drain(made(model).forward_backward(RUN, data, LOSS, {}))


def test_more_tokens_than_the_context_are_refused(model: Path) -> None:
    with pytest.raises(RequestError, match="context is 512"):
        drain(made(model).forward(RUN, make_data([513]), adapter=False))
