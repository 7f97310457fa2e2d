"""B4: decode with four adapters of ranks 4, 8, 16 and 32 in the batch against none."""

from benchmarks.engine.decode import RANKS, compare, ours
from benchmarks.figure import Measured

AT_LEAST = 0.9


def measure() -> Measured:
    """The least ratio over the batches."""
    return compare(("adapters", "none"), lambda n: ours(n, RANKS), ours, AT_LEAST)
