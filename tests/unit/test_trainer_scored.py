"""Scored positions: each goes through the head once, and gradients only where the loss can move."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from random_models import random_model
from test_trainer_prefix import SAMPLES, groups
from trainer_support import RUN, drain, relative_l2, stirred

from plait.core.losses import LOSSES, PENALTIES
from plait.core.operations import Datum
from plait.core.runs import HEAD, TARGETS, LoraSpec
from plait.engines.torch.train import model as forward
from plait.engines.torch.train.batch import pack
from plait.engines.torch.train.checked import check
from plait.engines.torch.train.losses import choose
from plait.engines.torch.trainer import TorchTrain

PROMPT, N_GROUPS = 20, 2
LOSS = "importance_sampling"
SPECS = {
    "layers": LoraSpec(rank=4, seed=1),
    "head too": LoraSpec(rank=4, alpha=6.0, seed=1, targets=(*TARGETS, HEAD)),
}


def whole(data: list[Datum]) -> list[Datum]:
    """As clients of the Tinker API send it: all is scored, the prompt's advantages are 0."""
    return [
        replace(
            d,
            mask=[True] * len(d.mask),
            inputs={
                "advantages": [a * m for a, m in zip(d.inputs["advantages"], d.mask, strict=True)],
                "logprobs": [q * m for q, m in zip(d.inputs["logprobs"], d.mask, strict=True)],
            },
        )
        for d in data
    ]


def answers(data: list[Datum]) -> list[Datum]:
    """The same with what moves alone."""
    return [
        replace(d, mask=[a != 0 for a in d.inputs["advantages"]], inputs=d.inputs)
        for d in whole(data)
    ]


def made(model: Path, spec: LoraSpec = SPECS["layers"], **options: bool) -> TorchTrain:
    engine = TorchTrain(model, **options)
    engine.create(RUN, spec)
    stirred(engine)
    return engine


def test_what_is_shared_is_evaluated_once_and_moves_by_itself() -> None:
    data = whole(groups(N_GROUPS, PROMPT))
    (part_moving, part_still), places_M = packed_parts(data)
    n_own = [len(d.input_tokens) - PROMPT for d in data]
    assert part_moving.moves
    assert not part_still.moves
    # The prompt's last position predicts each sample's first token: one row, a target for each.
    assert len(part_moving.rows_S) == N_GROUPS + sum(n_own)
    assert len(part_moving.targets_U) == N_GROUPS * SAMPLES + sum(n_own)
    assert len(part_still.rows_S) == len(part_still.targets_U) == N_GROUPS * (PROMPT - 1)
    wanted = [t for d in data for t in d.target_tokens]
    targets = torch.cat([part_moving.targets_U, part_still.targets_U])
    assert targets[places_M].tolist() == wanted


def packed_parts(data: list[Datum]):
    class Arch:
        vocab_size, max_context = 1000, 1000

    packed = pack([check(data, Arch(), choose(LOSS, {}).choice)], torch.device("cpu"))
    return packed.scored, packed.places_M


def test_without_company_there_is_one_part_in_the_order_of_the_data() -> None:
    (part,), places = packed_parts(answers(groups(1, PROMPT))[:1])
    assert part.moves
    assert part.of_U is places is None


@pytest.mark.parametrize("name", LOSSES)
def test_a_token_without_a_factor_has_no_slope(name: str) -> None:
    g = torch.Generator().manual_seed(0)
    needed = {"beta": 0.0} if name == "dro" else {}
    for penalty in (None, *(p for p in PENALTIES if p in LOSSES[name].options)):
        config = needed if penalty is None else {**needed, penalty: 0.5}
        chosen = choose(name, config)
        inputs = {
            key: torch.randn(64, generator=g)
            for key in ("weights", "advantages", "logprobs", "ref_logprobs")
        }
        for i, key in enumerate(("weights", "advantages")):
            inputs[key][i::4] = 0
        logp = torch.randn(64, generator=g, requires_grad=True)
        chosen(logp, inputs, [32, 32])[0].backward()
        assert logp.grad is not None
        still = torch.zeros(64, dtype=torch.bool)
        for key in chosen.choice.factors:
            still |= inputs[key] == 0
        assert not logp.grad[still].any()
        without_advantage = logp.grad[1::4]
        if penalty is not None or name == "cross_entropy":
            assert without_advantage.any()
        else:
            assert "advantages" in chosen.choice.factors


@pytest.mark.parametrize(
    ("exact", "by_transformers"), [(False, False), (True, False), (False, True)]
)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_values_are_each_sequence_s_and_the_gradient_what_moves_has(
    tmp_path: Path, exact: bool, spec: LoraSpec, by_transformers: bool
) -> None:
    model = random_model(tmp_path, "llama")
    options = {"exact": exact, "by_transformers": by_transformers}
    data = whole(groups(N_GROUPS, PROMPT))
    engine, alone, moved = (made(model, spec, **options) for _ in range(3))
    together = drain(engine.forward_backward(RUN, data, LOSS, {}))
    drain(moved.forward_backward(RUN, answers(data), LOSS, {}))
    for one, found in zip(data, together.logprobs, strict=True):
        values = drain(alone.forward(RUN, [one], adapter=True)).logprobs[0]
        assert found == (values if exact else pytest.approx(values, abs=1e-5))
        drain(alone.forward_backward(RUN, [one], LOSS, {}))
    grad = engine._run(RUN).grad
    assert relative_l2(grad, alone._run(RUN).grad) <= 1e-5
    assert relative_l2(grad, moved._run(RUN).grad) <= 1e-5


def test_layers_computed_again_change_no_bit(tmp_path: Path) -> None:
    model = random_model(tmp_path, "llama")
    grads = []
    for recompute in (False, True):
        engine = made(model, recompute=recompute)
        drain(engine.forward_backward(RUN, whole(groups()), LOSS, {}))
        grads.append(engine._run(RUN).grad)
    assert torch.equal(*grads)


def test_no_gradient_goes_through_the_head_where_nothing_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, bool]] = []

    def watched(h_SD: torch.Tensor, *args: object) -> torch.Tensor:
        seen.append((len(h_SD), h_SD.requires_grad))
        return real(h_SD, *args)

    real = forward.target_logprobs
    monkeypatch.setattr(forward, "target_logprobs", watched)
    data = whole(groups(N_GROUPS, PROMPT))
    engine = made(random_model(tmp_path, "llama"))
    drain(engine.forward_backward(RUN, data, LOSS, {}))
    n_own = sum(len(d.input_tokens) - PROMPT for d in data)
    assert seen == [(N_GROUPS + n_own, True), (N_GROUPS * (PROMPT - 1), False)]


def test_data_with_nothing_that_moves_are_scored_all_the_same(tmp_path: Path) -> None:
    model = random_model(tmp_path, "llama")
    data = [
        replace(d, inputs={**d.inputs, "advantages": [0.0] * len(d.mask)}) for d in whole(groups())
    ]
    engine = made(model)
    found = drain(engine.forward_backward(RUN, data, LOSS, {}))
    assert not engine._run(RUN).grad.any()
    assert found.metrics["loss:sum"] == 0
    want = drain(engine.forward(RUN, data, adapter=True)).logprobs
    np.testing.assert_allclose(np.concatenate(found.logprobs), np.concatenate(want), atol=1e-5)
