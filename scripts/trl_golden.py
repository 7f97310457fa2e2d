"""Compute the reference of ``tests/unit/test_trl_parity.py`` with the real ``trl.GRPOTrainer``.

Runs in an environment of its own (``pip install trl==1.16 torch==2.13.0 peft``), not in plait's:

    python scripts/trl_golden.py

The trainer makes its own advantages, reference log-probs and loss from rollouts that are handed to
it through ``rollout_func``; only the sampler's log-probs are set here in the off-policy cases.
``kl_by_ratio`` is TRL's ``use_bias_correction_kl``, on by default there.
"""

import json
import platform
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "unit" / "golden"))

import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402
import trl_case as case  # noqa: E402
from datasets import Dataset  # noqa: E402
from tokenizers import Tokenizer, models  # noqa: E402
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

OUT = ROOT / "tests" / "unit" / "golden" / "trl_grpo.json"


def tokenizer() -> PreTrainedTokenizerFast:
    """Never decides a token: rollouts come with theirs."""
    words = {f"w{i}": i for i in range(case.VOCAB)}
    fast = Tokenizer(models.WordLevel(words, unk_token="w0"))
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, eos_token="w1", pad_token="w0", unk_token="w0"
    )


def rollouts(prompts, trainer):
    return {
        "prompt_ids": [list(p) for p in case.PROMPTS for _ in range(case.SAMPLES)],
        "completion_ids": case.completions(),
        "logprobs": None,
        "env_mask": [[int(m) for m in row] for row in case.sampled_masks()],
    }


def rewards(prompts, completions, **_):
    return list(case.REWARDS)


def one(folder: Path, loss_type: str, beta: float, kl_by_ratio: bool, off_policy: bool) -> dict:
    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, folder / "adapter", is_trainable=True)
    args = GRPOConfig(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=len(case.REWARDS),
        num_generations=case.SAMPLES,
        max_completion_length=case.MAX_COMPLETION_LENGTH,
        loss_type=loss_type,
        scale_rewards="none" if loss_type == "dr_grpo" else "group",
        beta=beta,
        use_bias_correction_kl=kl_by_ratio,
        epsilon=0.2,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to=[],
    )
    trainer = GRPOTrainer(
        model=model,
        args=args,
        reward_funcs=rewards,
        train_dataset=Dataset.from_list([{"prompt": f"w{i}"} for i in range(len(case.PROMPTS))]),
        processing_class=tokenizer(),
        rollout_func=rollouts,
    )
    if beta:  # TRL copies the adapter as the reference; plait's reference is the base model
        for name, p in trainer.model.named_parameters():
            if ".ref." in name and "lora_B" in name:
                p.data.zero_()
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    inputs = [{"prompt": f"w{i}"} for i in range(len(case.PROMPTS)) for _ in range(case.SAMPLES)]
    batch = trainer._generate_and_score_completions(inputs)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    with torch.no_grad():
        logps, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, attention, batch["completion_ids"].size(1)
        )
    old = logps.clone()
    if off_policy:
        for row, extra in zip(old, case.drift(), strict=True):
            row[: len(extra)] += torch.tensor(extra)
        batch["old_per_token_logps"] = old
    loss = trainer._compute_loss(trainer.model, batch)
    loss.backward()
    grads = {n: p.grad for n, p in trainer.model.named_parameters() if p.grad is not None}
    return {
        "loss_type": loss_type,
        "beta": beta,
        "kl_by_ratio": kl_by_ratio,
        "off_policy": off_policy,
        "loss": loss.item(),
        "grad_norm": torch.stack([g.norm() for g in grads.values()]).norm().item(),
        "advantages": batch["advantages"].tolist(),
        "old_logprobs": _rows(old),
        "ref_logprobs": _rows(batch["ref_per_token_logps"]) if beta else None,
    }


def _rows(values_BT: torch.Tensor) -> list[list[float]]:
    return [
        [round(v, 7) for v in row[:n].tolist()]
        for row, n in zip(values_BT, case.LENGTHS, strict=True)
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        case.write_model(folder / "model")
        case.write_adapter(folder / "adapter", folder / "model")
        cases = [
            one(folder, loss_type, beta, kl_by_ratio, off_policy)
            for loss_type in ("grpo", "dr_grpo", "bnpo")
            for beta, kl_by_ratio in ((0.0, False), (0.04, False), (0.04, True))
            for off_policy in (False, True)
        ]
    versions = {m.__name__: m.__version__ for m in (trl, torch, transformers, peft)}
    versions["python"] = platform.python_version()
    OUT.write_text(json.dumps({"versions": versions, "cases": cases}) + "\n")
    for c in cases:
        print(
            c["loss_type"], c["beta"], c["kl_by_ratio"], c["off_policy"], c["loss"], c["grad_norm"]
        )


if __name__ == "__main__":
    main()
