"""Every loss's gradient against transformers + peft autograd of a plain formula, in float64."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from random_models import VOCAB_SIZE, random_model
from trainer_support import (
    RUN,
    drain,
    make_data,
    peft_model,
    reference_gradient,
    reference_logprobs,
    relative_l2,
    stirred,
)

from plait.core.operations import Datum
from plait.core.runs import LoraSpec
from plait.engines.torch.train import head
from plait.engines.torch.trainer import TorchTrain

# peft asks a transformers model for the attribute under its old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

LENGTHS = [9, 30, 17, 30]
K = 3


class Setting:
    """An engine whose run has moved off version 0, and the same policy in peft."""

    def __init__(self, folder: Path) -> None:
        model = random_model(folder / "model")
        self.engine = TorchTrain(model)
        self.engine.create(RUN, LoraSpec(rank=4, seed=1))
        self.params = stirred(self.engine)
        (folder / "adapter").mkdir()
        self.engine.save(RUN, str(folder / "adapter"), optimizer=False)
        self.reference = peft_model(model, folder / "adapter", torch.float64)

    def check(self, data: list[Datum], loss: str, config: dict, want: torch.Tensor) -> None:
        """The engine's value and gradient are those of ``want``, which autograd can follow."""
        result = drain(self.engine.forward_backward(RUN, data, loss, config))
        assert result.metrics["loss:sum"] == pytest.approx(want.item(), rel=1e-5)
        self.check_gradient(want)

    def check_gradient(self, want: torch.Tensor) -> None:
        want.backward()
        got = self.params.grad
        assert relative_l2(got, reference_gradient(self.reference, self.params)) <= 1e-5


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def near_policy(engine: TorchTrain) -> list[Datum]:
    """Random data that a policy not far from the trained one drew, so that some ratios are clipped
    and some are not; the last position of each sequence is out of the sequence's mean."""
    data = []
    g = torch.Generator().manual_seed(4)
    plain = make_data(LENGTHS)
    now = drain(engine.forward(RUN, plain, adapter=True)).logprobs
    for datum, row in zip(plain, now, strict=True):
        values = iter((torch.tensor(row) + 0.25 * torch.randn(len(row), generator=g)).tolist())
        q = [next(values) if scored else 0.0 for scored in datum.mask]
        in_mean = [1.0] * (len(q) - 1) + [0.0]
        inputs = {**datum.inputs, "logprobs": q, "sequence_ratio_mask": in_mean}
        data.append(replace(datum, inputs=inputs))
    return data


def clipped(ratio: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    return -torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage)


def ppo(p, q, a, m):
    return clipped((p - q).exp(), a)


def cispo(p, q, a, m):
    return -(p - q).exp().clamp(0.9, 1.1).detach() * p * a


def dro(p, q, a, m):
    return -(p * a - 0.5 * 0.7 * (p - q) ** 2)


def gspo(p, q, a, m):
    s = (((p - q) * m).sum() / m.sum()).exp().detach()
    return clipped(s * p.exp() / p.exp().detach(), a)


def stable_reinforce(p, q, a, m):
    return cispo(p, q, a, m) + 0.2 * ((q - p).exp() - (q - p) - 1)


CLIPS = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}
LOSSES: dict[str, tuple[dict[str, float], Callable[..., torch.Tensor]]] = {
    "ppo": (CLIPS, ppo),
    "cispo": (CLIPS, cispo),
    "dro": ({"beta": 0.7}, dro),
    "gspo": (CLIPS, gspo),
    "stable_reinforce": ({**CLIPS, "kl_coeff": 0.2}, stable_reinforce),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_equal_autograd(name: str, setting: Setting) -> None:
    config, formula = LOSSES[name]
    data = near_policy(setting.engine)
    total = torch.zeros((), dtype=torch.float64)
    for datum in data:
        rows = torch.tensor(datum.mask)
        q, a, m, w = (
            torch.tensor(datum.inputs[key], dtype=torch.float64)[rows]
            for key in ("logprobs", "advantages", "sequence_ratio_mask", "weights")
        )
        total = total + (w * formula(reference_logprobs(setting.reference, datum), q, a, m)).sum()
    setting.check(data, name, config, total)


def soft_data() -> list[Datum]:
    """Three targets per position with weights of either sign; one sequence of one target."""
    g = torch.Generator().manual_seed(6)
    data = []
    for i, datum in enumerate(make_data(LENGTHS)):
        shape = (LENGTHS[i], 1 if i == 1 else K)
        targets = torch.randint(0, VOCAB_SIZE, shape, generator=g).tolist()
        weights = torch.randn(shape, generator=g).tolist()
        data.append(replace(datum, target_tokens=targets, inputs={"weights": weights}))
    return data


def soft_logprobs(model: Any, datum: Datum) -> torch.Tensor:
    """``(S, K)`` at scored positions."""
    logits = model(input_ids=torch.tensor([list(datum.input_tokens)]), use_cache=False).logits[0]
    rows = torch.tensor(datum.mask)
    return torch.log_softmax(logits[rows], -1).gather(1, torch.tensor(datum.target_tokens)[rows])


@pytest.mark.parametrize("block_bytes", [head.BLOCK_BYTES, 1])
def test_soft_targets_equal_autograd(setting: Setting, monkeypatch, block_bytes: int) -> None:
    monkeypatch.setattr(head, "BLOCK_BYTES", block_bytes)  # 1: several blocks of logits
    data = soft_data()
    total = torch.zeros((), dtype=torch.float64)
    scored = drain(setting.engine.forward(RUN, data, adapter=True)).logprobs
    for datum, ours in zip(data, scored, strict=True):
        logp = soft_logprobs(setting.reference, datum)
        assert (torch.tensor(ours) - logp.detach().flatten()).abs().max() <= 1e-4
        weights = torch.tensor(datum.inputs["weights"], dtype=torch.float64)
        total = total - (weights[torch.tensor(datum.mask)] * logp).sum()
    setting.check(data, "cross_entropy", {}, total)


def pairwise(rows: list[torch.Tensor]) -> torch.Tensor:
    """A client's own loss over the whole batch, such as no formula of one token can be: preference
    of the first half of the sequences over the second, and spread of the log-probs of each."""
    half = len(rows) // 2
    margin = sum(row.sum() for row in rows[:half]) - sum(row.sum() for row in rows[half:])
    return -torch.nn.functional.logsigmoid(0.01 * margin) + sum(row.var() for row in rows)


def test_any_loss_of_a_client_by_weighted_cross_entropy(setting: Setting) -> None:
    data = [replace(datum, inputs={}) for datum in make_data(LENGTHS)]
    scored = drain(setting.engine.forward(RUN, data, adapter=True)).logprobs
    rows = [torch.tensor(row, requires_grad=True) for row in scored]
    pairwise(rows).backward()
    weighted = []
    for datum, row in zip(data, rows, strict=True):
        slopes = iter((-row.grad).tolist())
        weights = [next(slopes) if at else 0.0 for at in datum.mask]
        weighted.append(replace(datum, inputs={"weights": weights}))
    drain(setting.engine.forward_backward(RUN, weighted, "cross_entropy", {}))
    setting.check_gradient(
        pairwise([reference_logprobs(setting.reference, datum) for datum in data])
    )


def test_a_client_loss_over_several_targets(setting: Setting) -> None:
    """Distillation: the client's own divergence over the K targets of each position."""
    data = soft_data()

    def divergence(rows: list[torch.Tensor]) -> torch.Tensor:
        return sum((row.exp() * row.square()).sum() for row in rows)

    scored = drain(setting.engine.forward(RUN, data, adapter=True)).logprobs
    rows = [torch.tensor(row, requires_grad=True) for row in scored]
    divergence(rows).backward()
    weighted = []
    for datum, row in zip(data, rows, strict=True):
        weights = torch.zeros(torch.tensor(datum.target_tokens).shape)
        weights[torch.tensor(datum.mask)] = -row.grad.view(-1, weights.shape[1])
        weighted.append(replace(datum, inputs={"weights": weights.tolist()}))
    drain(setting.engine.forward_backward(RUN, weighted, "cross_entropy", {}))
    setting.check_gradient(divergence([soft_logprobs(setting.reference, d) for d in data]))
