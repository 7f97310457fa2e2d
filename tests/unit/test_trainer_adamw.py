import math
from dataclasses import replace

import pytest
import torch
from test_trainer_ops import ARCH

from plait.core.errors import EngineError, RequestError
from plait.core.operations import AdamParams
from plait.core.runs import LoraSpec
from plait.engines.torch.train.adamw import adamw_step
from plait.engines.torch.train.params import RunParams

ADAM = AdamParams(learning_rate=0.01, eps=1e-8, weight_decay=0.1)


def made() -> RunParams:
    params = RunParams(ARCH, LoraSpec(rank=2, seed=3), torch.device("cpu"))
    params.init()
    return params


def state(params: RunParams) -> list[torch.Tensor]:
    return [x.clone() for x in (params.flat, params.m, params.v, params.grad)]


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_steps_equal_torch_adamw(clip: float) -> None:
    torch.manual_seed(0)
    params = made()
    theirs = params.flat.clone().requires_grad_()
    optimizer = torch.optim.AdamW([theirs], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for step in range(5):
        grad = torch.randn(params.grad.shape)
        params.grad.copy_(grad)
        theirs.grad = grad.clone()
        if clip:
            torch.nn.utils.clip_grad_norm_([theirs], clip)
        metrics = adamw_step(params, replace(ADAM, grad_clip_norm=clip))
        optimizer.step()
        torch.testing.assert_close(params.flat, theirs.detach(), rtol=1e-6, atol=1e-7)
        assert metrics["grad_norm:mean"] == pytest.approx(float(grad.norm()))
        assert not params.grad.any()
        assert (params.steps, params.version) == (step + 1, step + 1)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    params = made()
    params.grad[3] = bad
    before = state(params)
    with pytest.raises(EngineError, match="gradient is not finite"):
        adamw_step(params, ADAM)
    assert all(torch.equal(a, b) for a, b in zip(before[:3], state(params)[:3], strict=True))
    assert (params.steps, params.version) == (0, 0)


def test_weights_that_would_not_be_finite_change_nothing() -> None:
    params = made()
    params.grad.fill_(1.0)
    before = state(params)
    with pytest.raises(EngineError, match="lower it"):
        adamw_step(params, replace(ADAM, learning_rate=1e39))
    assert all(torch.equal(a, b) for a, b in zip(before, state(params), strict=True))
    assert params.steps == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", math.nan),
        ("learning_rate", -1.0),
        ("beta1", 1.0),
        ("beta2", -0.1),
        ("eps", -1.0),
        ("weight_decay", math.inf),
        ("grad_clip_norm", -1.0),
    ],
)
def test_values_outside_their_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(RequestError, match=name):
        adamw_step(made(), replace(ADAM, **{name: value}))
