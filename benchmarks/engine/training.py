"""Training: groups of samples of one shape, trained by plait and by a plain HF + PEFT loop."""

import functools
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.engine.decode import model_dir
from plait.core.ids import RunId
from plait.core.operations import Datum
from plait.core.runs import LoraSpec
from plait.engines.torch.trainer import TorchTrain

RANK = 8
RUN = RunId("bench")


def groups(
    n_groups: int, samples: int, prompt: int, answer: int, vocab: int = 40_000
) -> list[tuple[int, ...]]:
    """Sequences of ``prompt + answer`` tokens; those of a group begin alike."""
    g = torch.Generator().manual_seed(prompt)

    def some(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, vocab, (n,), generator=g).tolist())

    shared = [some(prompt) for _ in range(n_groups)]
    return [p + some(answer) for p in shared for _ in range(samples)]


def datum(tokens: Sequence[int], prompt: int, sign: float) -> Datum:
    """One sequence whose answer is scored."""
    n = len(tokens) - 1
    return Datum(
        input_tokens=tokens[:-1],
        target_tokens=tokens[1:],
        mask=[i >= prompt - 1 for i in range(n)],
        inputs={"logprobs": [-10.0] * n, "advantages": [sign] * n},
    )


@functools.cache
def trainer() -> TorchTrain:
    """plait's trainer with one run."""
    engine = TorchTrain(model_dir())
    engine.create(RUN, LoraSpec(rank=RANK, alpha=16.0))
    return engine


def ours(data: Sequence[Datum]) -> tuple[float, int]:
    """Seconds of one gradient, and the tokens that were computed for it."""
    start, n_tokens = time.perf_counter(), 0
    for step in trainer().forward_backward(RUN, data, "importance_sampling", {}):
        n_tokens += step.n_tokens
    return time.perf_counter() - start, n_tokens


@functools.cache
def _peft() -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model_dir(), dtype=torch.float32)
    return get_peft_model(base, LoraConfig(r=RANK, lora_alpha=16, target_modules="all-linear"))


def plain(data: Sequence[Datum], batch: int) -> float:
    """Seconds of the same gradient by transformers + PEFT, ``batch`` sequences at a time."""
    model = _peft()
    model.zero_grad()
    start = time.perf_counter()
    for i in range(0, len(data), batch):
        part = data[i : i + batch]
        tokens = torch.tensor([d.input_tokens for d in part])
        first = list(part[0].mask).index(True)
        n_scored = tokens.shape[1] - first
        logits = model(tokens, logits_to_keep=n_scored).logits
        targets = torch.tensor([list(d.target_tokens)[first:] for d in part])
        logprobs = torch.log_softmax(logits, -1).gather(-1, targets[..., None])[..., 0]
        old = torch.tensor([list(d.inputs["logprobs"])[first:] for d in part])
        gain = torch.tensor([list(d.inputs["advantages"])[first:] for d in part])
        (-((logprobs - old).exp() * gain).sum()).backward()
    return time.perf_counter() - start
