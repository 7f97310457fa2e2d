"""Shared prefixes: computed once, and nothing of the update changes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import random_model
from trainer_support import RUN, drain, make_data, relative_l2, stirred

from plait.core.operations import Datum
from plait.core.runs import LoraSpec
from plait.engines.torch.train import batch, prefix
from plait.engines.torch.train.prefix import common, families
from plait.engines.torch.trainer import TorchTrain

SAMPLES = 4


def groups(n_groups: int = 2, prompt: int = 20) -> list[Datum]:
    """Samples of ``n_groups`` prompts with completions of unequal length, in mixed order."""
    data = []
    for g in range(n_groups):
        (start,) = make_data([prompt], seed=100 + g)
        for s in range(SAMPLES):
            (end,) = make_data([5 + 3 * s], seed=10 * g + s)
            tokens = [*start.input_tokens, *end.input_tokens, end.target_tokens[-1]]
            n = len(tokens) - 1
            scored = [i >= prompt - 1 for i in range(n)]
            inputs = {
                "advantages": [float(s - 1.5)] * n,
                "logprobs": [-5.0] * n,
                "weights": [0.1 * (s + 1)] * n,
            }
            data.append(
                Datum(
                    input_tokens=tokens[:-1],
                    target_tokens=tokens[1:],
                    mask=scored,
                    inputs=inputs,
                )
            )
    return data[::2] + data[1::2]


def gradient(model: Path, data: list[Datum], **options: int) -> tuple[torch.Tensor, object, int]:
    engine = TorchTrain(model, **options)
    engine.create(RUN, LoraSpec(rank=4, seed=1))
    params = stirred(engine)
    n_tokens = 0
    work = engine.forward_backward(RUN, data, "ppo", {})
    while True:
        try:
            n_tokens += next(work).n_tokens
        except StopIteration as end:
            return params.grad.clone(), end.value, n_tokens


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_update_is_that_of_each_sequence_by_itself(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(tmp_path, family)
    data = groups()
    shared, ours, n_shared = gradient(model, data)
    alone = lambda tokens: [prefix.Family(members=(i,), shared=0) for i in range(len(tokens))]  # noqa: E731
    monkeypatch.setattr(batch, "families", alone)
    apart, theirs, n_apart = gradient(model, data)
    assert n_apart - n_shared == 2 * (SAMPLES - 1) * 20
    assert relative_l2(shared, apart) <= 1e-5
    for a, b in zip(ours.logprobs, theirs.logprobs, strict=True):
        assert a == pytest.approx(b, abs=1e-5)


def test_a_family_that_is_cut_into_micro_batches_gives_the_same_update(tmp_path: Path) -> None:
    model = random_model(tmp_path, "llama")
    whole, _, n_whole = gradient(model, groups())
    cut, _, n_cut = gradient(model, groups(), max_tokens=45)
    assert n_cut > n_whole
    assert relative_l2(cut, whole) <= 1e-5


def test_the_reference_pass_shares_too(tmp_path: Path) -> None:
    model = random_model(tmp_path, "llama")
    engine = TorchTrain(model)
    engine.create(RUN, LoraSpec(rank=4, seed=1))
    data = groups()
    together = drain(engine.forward(RUN, data, adapter=False)).logprobs
    for one, values in zip(data, together, strict=True):
        alone = drain(engine.forward(RUN, [replace(one)], adapter=False)).logprobs[0]
        assert values == pytest.approx(alone, abs=1e-5)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=24), min_size=1, max_size=12))
def test_every_sequence_is_in_one_family_and_keeps_its_prefix(rows: list[list[int]]) -> None:
    tokens = [np.array(r) for r in rows]
    found = families(tokens)
    assert sorted(i for f in found for i in f.members) == list(range(len(rows)))
    for f in found:
        first = tokens[f.members[0]]
        assert all(common(first[: f.shared], tokens[i]) == f.shared for i in f.members)
        assert f.shared == 0 or f.shared >= prefix.WORTH


def test_prompts_under_one_template_are_not_one_family() -> None:
    template = list(range(10))
    a, b = [*template, *[50] * 30], [*template, *[60] * 30]
    rows = [np.array([*p, 70 + i]) for p in (a, b) for i in range(3)]
    assert sorted(f.shared for f in families(rows)) == [40, 40]
