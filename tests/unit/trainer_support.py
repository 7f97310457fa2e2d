"""Helpers of the training engine's tests: data, driving operations, the transformers reference."""

from collections.abc import Generator
from pathlib import Path
from typing import Any, TypeVar

import torch
from random_models import VOCAB_SIZE

from plait.core.ids import RunId
from plait.core.operations import Datum
from plait.core.runs import HEAD, MLP
from plait.engines.protocol import TrainStep
from plait.engines.torch.train.batch import Packed
from plait.engines.torch.train.params import RunParams
from plait.engines.torch.trainer import TorchTrain

RUN = RunId("run")
T = TypeVar("T")


def drain(work: Generator[TrainStep, None, T]) -> T:
    while True:
        try:
            next(work)
        except StopIteration as stop:
            return stop.value


def make_data(lengths: list[int], *, seed: int = 0, prompt: int = 3) -> list[Datum]:
    """Random tokens; the first ``prompt`` positions are not scored, nor is one in the middle."""
    g = torch.Generator().manual_seed(seed)
    data = []
    for n in lengths:
        tokens = torch.randint(0, VOCAB_SIZE, (n + 1,), generator=g).tolist()
        data.append(
            Datum(
                input_tokens=tokens[:-1],
                target_tokens=tokens[1:],
                mask=[i >= prompt and i != n // 2 for i in range(n)],
                inputs={
                    "advantages": torch.randn(n, generator=g).tolist(),
                    "logprobs": (-5 - torch.rand(n, generator=g)).tolist(),
                    "weights": torch.rand(n, generator=g).tolist(),
                },
            )
        )
    return data


def n_seqs(batch: Packed) -> int:
    """Sequences of a micro-batch."""
    return sum(len(stretch.counts) for stretch in batch.stretches)


def stirred(engine: TorchTrain, scale: float = 0.05) -> RunParams:
    """The run's parameters, moved off version 0 so that B matters."""
    params = engine._run(RUN)
    g = torch.Generator().manual_seed(9)
    params.flat.add_(torch.randn(params.flat.shape, generator=g), alpha=scale)
    return params


def peft_model(model_dir: Path, adapter_dir: Path, dtype: torch.dtype) -> Any:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype)
    return PeftModel.from_pretrained(base, adapter_dir, is_trainable=True).to(dtype).train()


def reference_logprobs(model: Any, datum: Datum) -> torch.Tensor:
    """Log-probs at scored positions by transformers, one unpadded sequence at a time."""
    logits = model(input_ids=torch.tensor([list(datum.input_tokens)]), use_cache=False).logits[0]
    rows = torch.tensor(datum.mask).nonzero()[:, 0]
    targets = torch.tensor(datum.target_tokens)[rows]
    return torch.log_softmax(logits[rows], -1).gather(1, targets[:, None])[:, 0]


def reference_gradient(model: Any, params: RunParams) -> torch.Tensor:
    """The gradients that autograd left in a peft model, in the order of ``params.grad``."""
    found = dict(model.named_parameters())
    out = torch.zeros(params.grad.shape, dtype=torch.float64)
    for part in params.parts:
        block = "mlp" if part.module in MLP else "self_attn"
        place = HEAD if part.module == HEAD else f"model.layers.{part.layer}.{block}.{part.module}"
        stem = f"base_model.model.{place}.lora_"
        a = found[f"{stem}A.default.weight"].grad
        bt = found[f"{stem}B.default.weight"].grad.T
        for start, grad in ((part.a_start, a), (part.b_start, bt)):
            out[start : start + grad.numel()] = grad.flatten()
    return out


def relative_l2(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def saved_by_peft(model: Path, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """An adapter of peft's own making, which brings the base model's head along."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    config = LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj", "down_proj", HEAD])
    theirs = get_peft_model(base, config)
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in theirs.named_parameters():
            if "lora_" in name:
                p.copy_(0.1 * torch.randn(p.shape, generator=g))
    theirs.save_pretrained(folder)
    return theirs.eval()
