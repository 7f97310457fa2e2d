"""B5: training against a plain HF + PEFT loop on the same samples, groups of eight."""

from statistics import median

import torch

from benchmarks.engine.training import datum, groups, ours, plain
from benchmarks.figure import Measured
from benchmarks.live.launches import spread

SHAPES = {(34, 32): 1.65, (64, 32): 2.0}
"""Prompt and answer tokens, and the bar."""
GROUPS, SAMPLES = 2, 8
BATCHES = (8, 16)
"""Sequences at a time that the plain loop is tried with; the faster counts."""
REPEATS = 3
THREADS = 2


def measure() -> Measured:
    """The least ratio over bar; gradients are compared by a test (relative L2 ≤ 1e-5)."""
    torch.set_num_threads(THREADS)
    detail, shares = {}, []
    for (prompt, answer), bar in SHAPES.items():
        tokens = groups(GROUPS, SAMPLES, prompt, answer)
        data = [datum(t, prompt, (-1.0) ** i) for i, t in enumerate(tokens)]
        ours(data)
        tried = {n: plain(data, n) for n in BATCHES}
        best = min(tried, key=tried.__getitem__)
        pairs = [(plain(data, best), ours(data)[0]) for _ in range(REPEATS)]
        ratios = [a / b for a, b in pairs]
        shares.append(median(ratios) / bar)
        detail[f"{prompt}+{answer}"] = {
            "ratio": median(ratios),
            "bar": bar,
            "spread": spread(ratios),
            "samples_per_s": len(data) / median(b for _, b in pairs),
            "plain_samples_per_s": len(data) / median(a for a, _ in pairs),
            "plain_batch": best,
        }
    return Measured(value=min(shares), ok=min(shares) >= 1, detail=detail)
