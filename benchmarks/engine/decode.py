"""Decode: tokens per second of one forward step, ours and that of plain ``transformers``.

B sequences of CONTEXT tokens each, different prompts, one token a step; the prefill is not timed.
"""

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.engine.adapters import random_adapter
from benchmarks.figure import Measured
from benchmarks.live.launches import spread
from plait.core.ids import OpId, RunId
from plait.core.operations import Sample, SamplingParams
from plait.engines.torch.rollout import TorchRollout
from plait.models.registry import resolve

BATCHES = (8, 32, 64)
CONTEXT = 64
NEW = 16
THREADS = 2
REPEATS = 3
RANKS = (4, 8, 16, 32)


@functools.cache
def model_dir() -> Path:
    """The model of all engine figures."""
    return resolve("smollm2-135m")


def prompts(n: int) -> list[tuple[int, ...]]:
    """``n`` different prompts of CONTEXT tokens."""
    g = torch.Generator().manual_seed(n)
    return [tuple(torch.randint(3, 40_000, (CONTEXT,), generator=g).tolist()) for _ in range(n)]


@functools.cache
def _engine(ranks: Sequence[int]) -> TorchRollout:
    engine = TorchRollout(model_dir(), n_blocks=max(BATCHES) * (CONTEXT + NEW + 8) // 4)
    for i, rank in enumerate(ranks):
        engine.load_adapter(RunId(f"r{i}"), 1, random_adapter(model_dir(), rank))
    return engine


def ours(n: int, ranks: Sequence[int] = ()) -> float:
    """Tokens per second of the median decode step; one adapter after the other in turn."""
    torch.set_num_threads(THREADS)
    engine = _engine(tuple(ranks))
    params = SamplingParams(max_tokens=NEW, ignore_eos=True)
    for i, prompt in enumerate(prompts(n)):
        run, version = (RunId(f"r{i % len(ranks)}"), 1) if ranks else (RunId("base"), None)
        engine.add(
            Sample(op_id=OpId(str(i)), run_id=run, version=version, prompt=prompt, params=params)
        )
    seconds = []
    while engine.has_work():
        start = time.perf_counter()
        step = engine.step()
        if step.n_prefill_tokens == 0 and step.n_tokens == n:
            seconds.append(time.perf_counter() - start)
    return n / median(seconds)


@functools.cache
def _reference() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_dir(), dtype=torch.float32)


@torch.inference_mode()
def transformers(n: int) -> float:
    """The same of a plain forward with a cache, drawing by ``multinomial``."""
    torch.set_num_threads(THREADS)
    model = _reference()
    out = model(torch.tensor(prompts(n)), use_cache=True, logits_to_keep=1)
    seconds = []
    for _ in range(NEW):
        drawn = torch.multinomial(out.logits[:, -1].softmax(-1), 1)
        start = time.perf_counter()
        out = model(drawn, past_key_values=out.past_key_values, use_cache=True)
        torch.multinomial(out.logits[:, -1].softmax(-1), 1)
        seconds.append(time.perf_counter() - start)
    return n / median(seconds)


def compare(
    names: tuple[str, str], a: Callable[[int], float], b: Callable[[int], float], at_least: float
) -> Measured:
    """``a`` over ``b`` at each batch, in turn; the least ratio of medians decides."""
    detail = {}
    for n in BATCHES:
        pairs = [(a(n), b(n)) for _ in range(REPEATS)]
        ratios = [x / y for x, y in pairs]
        rates = {f"{name}_tok_s": median(p[i] for p in pairs) for i, name in enumerate(names)}
        detail[str(n)] = {"ratio": median(ratios), "spread": spread(ratios), **rates}
    worst = min(detail.values(), key=lambda d: d["ratio"])
    value = worst["ratio"]
    return Measured(value=value, ok=value >= at_least, spread=worst["spread"], detail=detail)


def gemm_flops() -> float:
    """FLOP/s of 1024³ fp32 products with THREADS threads, the best of some."""
    from plait.engines.torch.build import measure_peak

    torch.set_num_threads(THREADS)
    return measure_peak()
