"""B4: decode with four adapters of ranks 4, 8, 16 and 32 in the batch against none."""

from statistics import median

from benchmarks.engine.decode import BATCHES, RANKS, ours
from benchmarks.figure import Measured
from benchmarks.live.launches import spread

AT_LEAST = 0.9
REPEATS = 3


def measure() -> Measured:
    """The least ratio over the batches; A and B alternate."""
    detail = {}
    for n in BATCHES:
        pairs = [(ours(n, RANKS), ours(n)) for _ in range(REPEATS)]
        ratios = [a / b for a, b in pairs]
        detail[str(n)] = {
            "ratio": median(ratios),
            "spread": spread(ratios),
            "adapters_tok_s": median(a for a, _ in pairs),
            "none_tok_s": median(b for _, b in pairs),
        }
    worst = min(detail.values(), key=lambda d: d["ratio"])
    return Measured(
        value=worst["ratio"],
        ok=worst["ratio"] >= AT_LEAST,
        spread=worst["spread"],
        detail=detail,
    )
