"""One GRPO step equals TRL's on the same tokens: loss and gradient norm to 1e-4.

``golden/trl_grpo.json`` holds what the real ``trl.GRPOTrainer`` made of ``golden/trl_case.py``
(``scripts/trl_golden.py`` writes it). First our algorithms with the loss formula on transformers
and peft, then the same batch through the training engine itself.

``kl_by_ratio`` cases multiply the KL term by the probability ratio (TRL's default), the others are
TRL's ``use_bias_correction_kl=False``.
"""

import dataclasses
import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest

from plait.algos.batch import ALGORITHMS, Batch, Scored, build_batch
from plait.algos.datums import Segment, Trajectory, with_reference
from plait.core.operations import AdamParams

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = 1e-5
"""The bar is 1e-4; the smallest losses here are of that order."""

_spec = importlib.util.spec_from_file_location("trl_case", GOLDEN / "trl_case.py")
assert _spec is not None
assert _spec.loader is not None
case = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(case)

REFERENCE = json.loads((GOLDEN / "trl_grpo.json").read_text())["cases"]
NAMES = {"grpo": "grpo", "dr_grpo": "dr-grpo", "bnpo": "grpo-token-mean"}


def case_id(trl: dict[str, Any]) -> str:
    kl = "-by-ratio" if trl["kl_by_ratio"] else ""
    return f"{trl['loss_type']}-kl{trl['beta']}{kl}-{'off' if trl['off_policy'] else 'on'}-policy"


each_case = pytest.mark.parametrize("trl", REFERENCE, ids=case_id)


@pytest.fixture(autouse=True)
def _bnpo(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's ``bnpo`` is GRPO's advantage with a mean over tokens."""
    mixed = dataclasses.replace(ALGORITHMS["grpo"], normalisation="token-mean")
    monkeypatch.setitem(ALGORITHMS, "grpo-token-mean", mixed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trl")
    case.write_model(path / "model")
    case.write_adapter(path / "adapter", path / "model")
    return path


@pytest.fixture(scope="module")
def peft_model(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype="float32")
    return peft.PeftModel.from_pretrained(base, folder / "adapter", is_trainable=True)


def trajectory(b: int, logprobs: list[float]) -> Trajectory:
    """Rollout ``b`` cut into what the policy drew and what the environment said."""
    tokens, mask = case.completions()[b], case.sampled_masks()[b]
    segments, start = [], 0
    for end in range(1, len(tokens) + 1):
        if end == len(tokens) or mask[end] != mask[start]:
            drawn = tuple(logprobs[start:end]) if mask[start] else None
            segments.append(Segment(tokens=tuple(tokens[start:end]), logprobs=drawn))
            start = end
    return Trajectory(prompt=case.PROMPTS[b // case.SAMPLES], segments=tuple(segments))


def our_batch(trl: dict[str, Any]) -> Batch:
    scored = [
        Scored(trajectory=trajectory(b, trl["old_logprobs"][b]), reward=reward)
        for b, reward in enumerate(case.REWARDS)
    ]
    groups = [scored[i : i + case.SAMPLES] for i in range(0, len(scored), case.SAMPLES)]
    return build_batch(
        groups,
        algorithm=NAMES[trl["loss_type"]],
        max_tokens=case.MAX_COMPLETION_LENGTH,
        kl_coef=trl["beta"],
    )


@each_case
def test_advantages_equal_trls(trl: dict[str, Any]) -> None:
    ours = [a for group in our_batch(trl).advantages_PG for a in group]
    assert ours == pytest.approx(trl["advantages"], abs=1e-5)


@each_case
def test_only_groups_that_cannot_matter_are_skipped(trl: dict[str, Any]) -> None:
    batch = our_batch(trl)
    assert batch.signal.zero_signal == (1,)
    assert {p for p, _ in batch.members} == ({0, 1, 2} if trl["beta"] else {0, 2})


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.slow
@each_case
def test_loss_formula_on_our_batch_equals_trl(trl: dict[str, Any], peft_model: Any) -> None:
    import torch

    model, beta = peft_model, trl["beta"]
    model.zero_grad()

    def scored_logprobs(datum: Any) -> Any:
        logits = model(torch.tensor([datum.input_tokens])).logits[0].float()
        targets = torch.tensor(datum.target_tokens)
        logp = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
        return logp[torch.tensor(datum.mask)]

    total = torch.zeros(())
    for datum in our_batch(trl).data:
        mask = torch.tensor(datum.mask)
        weights, advantages, old = (
            torch.tensor(datum.inputs[name])[mask] for name in ("weights", "advantages", "logprobs")
        )
        logp = scored_logprobs(datum)
        ratio = (logp - old).exp()
        token_loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        if beta:
            with torch.no_grad(), model.disable_adapter():
                ref = scored_logprobs(datum)
            kl = (ref - logp).exp() - (ref - logp) - 1
            token_loss = token_loss + beta * (kl * ratio if trl["kl_by_ratio"] else kl)
        total = total + (weights * token_loss).sum()
    total.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norm = math.sqrt(sum(float(g.pow(2).sum()) for g in grads))
    assert total.item() == pytest.approx(trl["loss"], abs=TOLERANCE)
    assert norm == pytest.approx(trl["grad_norm"], abs=TOLERANCE)


@each_case
def test_training_engine_equals_trl(trl: dict[str, Any], folder: Path) -> None:
    pytest.importorskip("torch")
    from plait.core.ids import RunId
    from plait.engines.torch.trainer import TorchTrain

    def finish(steps: Any) -> Any:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value

    engine, run = TorchTrain(folder / "model"), RunId("trl")
    engine.load(run, str(folder / "adapter"), optimizer=False)
    data = our_batch(trl).data
    config = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2, "kl_coef": trl["beta"]}
    config["kl_by_ratio"] = float(trl["kl_by_ratio"])
    if trl["beta"]:
        reference = finish(engine.forward(run, data, adapter=False))
        data = with_reference(data, reference.logprobs)
    result = finish(engine.forward_backward(run, data, "ppo", config))
    step = engine.optim_step(run, AdamParams(learning_rate=1e-4))
    assert result.metrics["loss:sum"] == pytest.approx(trl["loss"], abs=TOLERANCE)
    assert step.metrics["grad_norm:mean"] == pytest.approx(trl["grad_norm"], abs=TOLERANCE)
