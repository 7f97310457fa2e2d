"""Several runs' gradients in one pass: each run's is its own, and so is each failure."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from random_models import random_model
from test_trainer_prefix import groups
from trainer_support import drain, make_data, n_seqs, relative_l2

from plait.core.errors import EngineError, PlaitError, RequestError
from plait.core.ids import OpId, RunId
from plait.core.operations import AdamParams, ForwardBackward, ForwardResult
from plait.core.runs import LoraSpec
from plait.engines.torch import own as module
from plait.engines.torch.trainer import TorchTrain

SPECS = {
    "a": LoraSpec(rank=4, seed=1),
    "b": LoraSpec(rank=16, alpha=8.0, seed=2, targets=("v_proj", "down_proj")),
    "c": LoraSpec(rank=1, seed=3, targets=("q_proj", "k_proj", "up_proj")),
}
ADAM = AdamParams(learning_rate=0.01)


def op(run: str, data, loss: str, **config: float) -> ForwardBackward:
    return ForwardBackward(
        op_id=OpId(f"{run}/1"),
        run_id=RunId(run),
        seq=1,
        data=tuple(data),
        loss=loss,
        loss_config=config,
    )


OPS = (
    op("a", groups(), "ppo", clip_low_threshold=0.5),
    op("b", [replace(d, inputs={}) for d in make_data([30, 9, 30], seed=5)], "cross_entropy"),
    op("c", groups(1, prompt=14), "importance_sampling"),
)


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("learning") / "model", request.param)


def made(model: Path, **options) -> TorchTrain:
    engine = TorchTrain(model, **options)
    for name, spec in SPECS.items():
        engine.create(RunId(name), spec)
        params = engine._run(RunId(name))
        g = torch.Generator().manual_seed(spec.seed)
        params.flat.add_(torch.randn(params.flat.shape, generator=g), alpha=0.05)
    return engine


def grads(engine: TorchTrain) -> dict[str, torch.Tensor]:
    return {name: engine._run(RunId(name)).grad.clone() for name in SPECS}


def alone(model: Path, ops=OPS, **options) -> tuple[dict[str, torch.Tensor], list]:
    engine = made(model, **options)
    results = [drain(engine.forward_backward(o.run_id, o.data, o.loss, o.loss_config)) for o in ops]
    return grads(engine), results


def assert_equal(outcomes, want) -> None:
    for ours, theirs in zip(outcomes, want, strict=True):
        assert isinstance(ours, ForwardResult)
        assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-5)
        for a, b in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert a == pytest.approx(b, abs=1e-5)


@pytest.mark.parametrize("max_tokens", [10_000, 70])
def test_gradients_are_those_of_each_run_by_itself(model: Path, max_tokens: int) -> None:
    want, results = alone(model)
    engine = made(model, max_tokens=max_tokens)
    work = engine.forward_backward_many(OPS)
    steps = []
    try:
        while True:
            steps.append(next(work))
    except StopIteration as end:
        assert_equal(end.value, results)
    if max_tokens == 10_000:
        (step,) = steps
        assert step.tokens_by_run.keys() == set(SPECS)
        assert step.n_tokens == sum(step.tokens_by_run.values())
    else:
        assert len(steps) > 3
        assert any(len(s.tokens_by_run) > 1 for s in steps)
        assert all(s.n_tokens <= max_tokens for s in steps)
    for name, grad in grads(engine).items():
        assert grad.any()
        assert relative_l2(grad, want[name]) <= 1e-6


def test_prefixes_are_shared_inside_a_run_and_never_between_runs(model: Path) -> None:
    same = [replace(OPS[0], run_id=RunId(name)) for name in SPECS]
    want, _ = alone(model, same)
    engine = made(model)
    (step,) = engine.forward_backward_many(same)
    (one,) = made(model).forward_backward(RunId("a"), OPS[0].data, "ppo", OPS[0].loss_config)
    assert step.tokens_by_run == {RunId(name): one.n_tokens for name in SPECS}
    assert one.n_tokens < sum(len(d.input_tokens) for d in OPS[0].data)
    for name, grad in grads(engine).items():
        assert relative_l2(grad, want[name]) <= 1e-6


def test_steps_that_follow_are_each_runs_own(model: Path) -> None:
    apart, together = made(model), made(model)
    for o in OPS:
        drain(apart.forward_backward(o.run_id, o.data, o.loss, o.loss_config))
    drain(together.forward_backward_many(OPS))
    for engine in (apart, together):
        assert engine.optim_step(RunId("b"), ADAM).version == 1
    assert relative_l2(together._run(RunId("b")).flat, apart._run(RunId("b")).flat) <= 1e-5
    assert not together._run(RunId("b")).grad.any()
    assert together._run(RunId("a")).grad.any()
    assert [together._run(RunId(name)).steps for name in SPECS] == [0, 1, 0]


def bad(kind: str) -> ForwardBackward:
    """The second run's part with something wrong in its last datum."""
    data = list(OPS[1].data)
    if kind == "ids":
        data[-1] = replace(data[-1], input_tokens=[10**6] * len(data[-1].input_tokens))
        return replace(OPS[1], data=tuple(data))
    if kind == "loss":
        return replace(OPS[1], loss="no_such_loss")
    if kind == "run":
        return replace(OPS[1], run_id=RunId("nobody"))
    data = make_data([30, 9, 30], seed=5)
    # exp(logp - q) overflows in the shortest, which comes last.
    data[1] = replace(data[1], inputs={**data[1].inputs, "logprobs": [-1e4] * 9})
    return replace(OPS[1], data=tuple(data), loss="importance_sampling")


@pytest.mark.parametrize("kind", ["ids", "loss", "run", "infinite loss"])
@pytest.mark.parametrize("max_tokens", [10_000, 70])
def test_a_runs_failure_is_its_own(model: Path, kind: str, max_tokens: int) -> None:
    want, results = alone(model, (OPS[0], OPS[2]))
    engine = made(model, max_tokens=max_tokens)
    drain(engine.forward_backward(RunId("b"), make_data([9]), "ppo", {}))
    before = grads(engine)["b"]
    outcomes = drain(engine.forward_backward_many([OPS[0], bad(kind), OPS[2]]))
    assert isinstance(outcomes[1], RequestError if kind != "infinite loss" else EngineError)
    assert_equal((outcomes[0], outcomes[2]), results)
    found = grads(engine)
    assert torch.equal(found["b"], before)
    for name in ("a", "c"):
        assert relative_l2(found[name], want[name]) <= 1e-6


def test_what_a_failed_run_still_has_is_not_computed(model: Path) -> None:
    data = make_data([30, 9, 30], seed=5)
    data[0] = replace(data[0], inputs={**data[0].inputs, "logprobs": [-1e4] * 30})
    engine = made(model, max_tokens=40, lanes=1)
    steps = engine.forward_backward_many([OPS[0], op("b", data, "importance_sampling")])
    tokens = [step.tokens_by_run for step in steps]
    assert sum(n.get(RunId("b"), 0) for n in tokens) == 30
    assert sum(n.get(RunId("a"), 0) for n in tokens) > 100


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_weights_that_are_no_numbers_stay_at_home(model: Path, lost: int) -> None:
    rest = [o for i, o in enumerate(OPS) if i != lost]
    want, _ = alone(model, rest)
    engine = made(model)
    engine._run(OPS[lost].run_id).flat.fill_(float("nan"))
    outcomes = drain(engine.forward_backward_many(OPS))
    assert isinstance(outcomes[lost], EngineError)
    found = grads(engine)
    assert not found[OPS[lost].run_id].any()
    for o in rest:
        assert relative_l2(found[o.run_id], want[o.run_id]) <= 1e-6


def test_a_gradient_that_is_not_finite_fails_its_run_alone(model: Path, monkeypatch) -> None:
    want, _ = alone(model, (OPS[0], OPS[2]))
    engine = made(model)

    class Spoiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, d):
            engine._run(RunId("b")).grad[0] = float("inf")
            return d

    real = module.logprobs
    monkeypatch.setattr(module, "logprobs", lambda *a, **k: Spoiled.apply(real(*a, **k)))
    outcomes = drain(engine.forward_backward_many(OPS))
    assert isinstance(outcomes[1], EngineError)
    found = grads(engine)
    assert not found["b"].any()
    for name in ("a", "c"):
        assert relative_l2(found[name], want[name]) <= 1e-6


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_out_of_memory_halves_a_shared_micro_batch(model: Path, monkeypatch, where: str) -> None:
    want, results = alone(model)
    engine = made(model)
    sizes: list[int] = []
    real = module.logprobs

    class Burst(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, n, params):
            ctx.n, ctx.params = n, params
            return x.view_as(x)

        @staticmethod
        def backward(ctx, d):
            if ctx.n > 4:
                for p in ctx.params:
                    p.grad.add_(7)
                raise torch.OutOfMemoryError("out of memory")
            return d, None, None

    def starving(weights, rope, batch, params, on_layer, **options):
        sizes.append(n_seqs(batch))
        if where == "forward" and n_seqs(batch) > 4:
            raise torch.OutOfMemoryError("out of memory")
        return Burst.apply(
            real(weights, rope, batch, params, on_layer, **options), n_seqs(batch), params
        )

    monkeypatch.setattr(module, "logprobs", starving)
    assert_equal(drain(engine.forward_backward_many(OPS)), results)
    assert sizes[0] == sum(len(o.data) for o in OPS)
    assert sum(n for n in sizes if n <= 4) == sizes[0]
    for name, grad in grads(engine).items():
        assert relative_l2(grad, want[name]) <= 1e-6


def test_one_sequence_too_large_fails_its_run_alone(model: Path, monkeypatch) -> None:
    want, _ = alone(model, (OPS[0], OPS[2]))
    engine = made(model)
    real = module.logprobs

    def starving(weights, rope, batch, params, on_layer, **options):
        if any(p.spec == SPECS["b"] for p in params):
            raise torch.OutOfMemoryError("out of memory")
        return real(weights, rope, batch, params, on_layer, **options)

    monkeypatch.setattr(module, "logprobs", starving)
    outcomes = drain(engine.forward_backward_many(OPS))
    assert isinstance(outcomes[1], EngineError)
    assert "alone" in str(outcomes[1])
    found = grads(engine)
    assert not found["b"].any()
    for name in ("a", "c"):
        assert relative_l2(found[name], want[name]) <= 1e-6


@pytest.mark.parametrize("exact", [False, True])
def test_a_pass_that_breaks_or_is_given_up_adds_nothing(
    model: Path, monkeypatch, exact: bool
) -> None:
    engine = made(model, max_tokens=70, exact=exact)
    work = engine.forward_backward_many(OPS)
    steps = [next(work)]
    while exact and len({run for step in steps for run in step.tokens_by_run}) < 2:
        steps.append(next(work))  # into the second run's, for each goes by itself
    assert any(grad.any() for grad in grads(engine).values())
    work.close()
    assert not any(grad.any() for grad in grads(engine).values())

    def broken(*args, **options):
        raise RuntimeError("shape mismatch")

    monkeypatch.setattr(module, "logprobs", broken)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        drain(engine.forward_backward_many(OPS))


def test_a_run_is_in_a_pass_once(model: Path) -> None:
    with pytest.raises(PlaitError, match="twice"):
        drain(made(model).forward_backward_many([OPS[0], OPS[0]]))
