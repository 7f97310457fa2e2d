"""G2: one gradient on a GPU, groups of eight with a shared prompt, against HF + PEFT."""

from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.engine.training import RANK, RUN, datum, groups
from benchmarks.figure import Measured
from benchmarks.gpu.decode import timed
from benchmarks.gpu.models import GPU, Shape, make, missing_device
from plait.core.runs import LoraSpec
from plait.engines.torch.trainer import TorchTrain

REPEATS = 3


def measure() -> Measured:
    """Samples per second over those of the plain loop."""
    return train(GPU) if torch.cuda.is_available() else missing_device()


def train(shape: Shape) -> Measured:
    """The same on any device."""
    folder = make(shape)
    prompt, answer = shape.context, shape.new
    tokens = groups(shape.samples // 8, 8, prompt, answer, vocab=shape.vocab)
    data = [datum(t, prompt, (-1.0) ** i) for i, t in enumerate(tokens)]
    engine = TorchTrain(folder, memory_bytes=20_000_000_000, dtype=shape.dtype, device=shape.device)
    engine.create(RUN, LoraSpec(rank=RANK, alpha=16.0))
    model = _peft(folder, shape)

    def ours() -> None:
        for _ in engine.forward_backward(RUN, data, "importance_sampling", {}):
            pass

    def plain() -> None:
        model.zero_grad()
        for i in range(0, len(tokens), 16):
            part = torch.tensor(tokens[i : i + 16], device=shape.device)
            logits = model(part[:, :-1], logits_to_keep=answer).logits.float()
            picked = torch.log_softmax(logits, -1).gather(-1, part[:, -answer:, None])
            (-(picked + 10).exp().sum()).backward()

    timed(ours, shape.device)
    timed(plain, shape.device)
    pairs = [(timed(plain, shape.device)[0], timed(ours, shape.device)[0]) for _ in range(REPEATS)]
    ratio = median(a / b for a, b in pairs)
    return Measured(
        value=ratio,
        ok=ratio >= 1,
        detail={
            "samples_per_s": len(data) / median(b for _, b in pairs),
            "plain_samples_per_s": len(data) / median(a for a, _ in pairs),
        },
    )


def _peft(folder: Path, shape: Shape) -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder, dtype=shape.dtype).to(shape.device)
    return get_peft_model(base, LoraConfig(r=RANK, lora_alpha=16, target_modules="all-linear"))
