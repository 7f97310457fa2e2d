"""AdamW: one step of one run over its flat buffers.

Decoupled weight decay (Loshchilov and Hutter, 2019), bias correction by the run's own counter,
epsilon beside the root, as ``torch.optim.AdamW`` does it. All or nothing: a step whose result is
not finite changes nothing.
"""

import math

import torch

from plait.core.errors import NotFinite, RequestError
from plait.core.operations import AdamParams
from plait.engines.torch.exact import UNDIVIDED
from plait.engines.torch.train.params import RunParams


def check_adam(adam: AdamParams) -> None:
    """RequestError if a hyperparameter is outside its range."""
    for name in ("learning_rate", "eps", "weight_decay", "grad_clip_norm"):
        value = getattr(adam, name)
        if not (math.isfinite(value) and value >= 0):
            raise RequestError(f"{name} is {value}: give a finite number, 0 or more")
    for name in ("beta1", "beta2"):
        if not 0 <= getattr(adam, name) < 1:
            raise RequestError(f"{name} is {getattr(adam, name)}: give a number from 0 to below 1")


@torch.no_grad()
def adamw_step(params: RunParams, adam: AdamParams) -> dict[str, float]:
    """Step, clear the gradient, and report norms.

    NotFinite (and no change) if the gradient or anything that would be stored is not finite.
    """
    check_adam(adam)
    norm = float(_norm(params.grad))
    if not math.isfinite(norm):
        raise NotFinite("the gradient is not finite: lower the learning rate or check the rewards")
    grad = params.grad
    if 0 < adam.grad_clip_norm < norm:
        grad = grad * (adam.grad_clip_norm / norm)
    step = params.steps + 1
    m = params.m.lerp(grad, 1 - adam.beta1)
    v = (params.v * adam.beta2).addcmul_(grad, grad, value=1 - adam.beta2)
    denominator = v.sqrt().div_(math.sqrt(1 - adam.beta2**step)).add_(adam.eps)
    flat = params.flat * (1 - adam.learning_rate * adam.weight_decay)
    # Not addcdiv_: its factor must fit fp32, and an absurd rate must end in the check below.
    flat.sub_(m.div(denominator).mul_(adam.learning_rate / (1 - adam.beta1**step)))
    moved = float(_norm(flat - params.flat))
    if not (math.isfinite(moved) and bool(torch.isfinite(v).all())):
        raise NotFinite(
            f"the step at learning rate {adam.learning_rate} gives weights that are not finite: "
            "lower it"
        )
    params.flat.copy_(flat)
    params.m.copy_(m)
    params.v.copy_(v)
    params.grad.zero_()
    params.steps = step
    params.version += 1
    return {"grad_norm:mean": norm, "update_norm:mean": moved}


def has_norm(grad_N: torch.Tensor) -> bool:
    """True if a step can be made of the gradient: its norm, and so each square that Adam takes, is
    finite."""
    return math.isfinite(float(_norm(grad_N)))


def _norm(x_N: torch.Tensor) -> torch.Tensor:
    """In pieces of one length: how a long sum is divided would depend on the number of threads."""
    pieces = [torch.linalg.vector_norm(piece) for piece in x_N.split(UNDIVIDED)]
    return torch.linalg.vector_norm(torch.stack(pieces))
