"""B6: two runs' updates in one pass against one after the other, small batches.

Ranks 8 and 16, for each one prompt of 34 tokens with four samples of 32, on two threads. An update
is the gradient and its optimizer step. Both ways on one engine, in turn; medians.
"""

import random
import statistics
import time
from collections.abc import Generator
from typing import Any

import torch

from benchmarks.figure import Measured
from plait.core.ids import OpId, RunId
from plait.core.operations import AdamParams, Datum, ForwardBackward
from plait.core.runs import LoraSpec
from plait.engines.torch.trainer import TorchTrain
from plait.models.registry import resolve

AT_LEAST = 1.15
THREADS, REPEATS = 2, 15
RANKS = (8, 16)
PROMPT, SAMPLES, NEW = 34, 4, 32
ADAM = AdamParams(learning_rate=1e-5)


def measure() -> Measured:
    """Median time one after the other over median time in one pass."""
    torch.set_num_threads(THREADS)
    engine = TorchTrain(resolve("smollm2-135m"))
    ops = [op(engine, rank, PROMPT, SAMPLES, NEW, seed=i) for i, rank in enumerate(RANKS)]
    took: dict[str, list[float]] = {"apart": [], "together": []}
    for _ in range(REPEATS + 1):  # the first round warms up
        took["apart"].append(apart(engine, ops))
        took["together"].append(together(engine, ops))
    ratios = [a / b for a, b in zip(took["apart"][1:], took["together"][1:], strict=True)]
    median_s = {name: statistics.median(times[1:]) for name, times in took.items()}
    value = median_s["apart"] / median_s["together"]
    return Measured(
        value=value,
        ok=value >= AT_LEAST,
        spread=(max(ratios) - min(ratios)) / 2 / statistics.median(ratios),
        detail={
            "threads": THREADS,
            "ranks": RANKS,
            "samples": SAMPLES,
            "tokens": f"{PROMPT}+{NEW}",
            "median_ms": {name: round(1e3 * t, 1) for name, t in median_s.items()},
        },
    )


def op(
    engine: TorchTrain, rank: int, prompt: int, samples: int, new: int, *, seed: int
) -> ForwardBackward:
    """Make a run, and a gradient for it of random tokens."""
    draw = random.Random(seed)
    run_id = RunId(f"rank-{rank}-{seed}")
    engine.create(run_id, LoraSpec(rank=rank, seed=seed))
    n_vocab, n = engine.shape.vocab_size, prompt + new - 1
    start = [draw.randrange(n_vocab) for _ in range(prompt)]
    data = []
    for _ in range(samples):
        tokens = start + [draw.randrange(n_vocab) for _ in range(new)]
        data.append(
            Datum(
                input_tokens=tokens[:-1],
                target_tokens=tokens[1:],
                mask=[i >= prompt - 1 for i in range(n)],
                inputs={"logprobs": [-10.0] * n, "advantages": [draw.gauss(0, 1)] * n},
            )
        )
    return ForwardBackward(
        op_id=OpId(f"{run_id}/1"), run_id=run_id, seq=1, data=tuple(data), loss="ppo"
    )


def apart(engine: TorchTrain, ops: list[ForwardBackward]) -> float:
    """Seconds of the updates one after the other."""
    began = time.perf_counter()
    for o in ops:
        _drain(engine.forward_backward(o.run_id, o.data, o.loss, o.loss_config))
        engine.optim_step(o.run_id, ADAM)
    return time.perf_counter() - began


def together(engine: TorchTrain, ops: list[ForwardBackward]) -> float:
    """Seconds of the same updates with their gradients in one pass."""
    began = time.perf_counter()
    _drain(engine.forward_backward_many(ops))
    for o in ops:
        engine.optim_step(o.run_id, ADAM)
    return time.perf_counter() - began


def _drain(work: Generator[Any, None, Any]) -> None:
    for _ in work:
        pass
