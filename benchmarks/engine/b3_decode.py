"""B3: decode against plain ``transformers``."""

from benchmarks.engine.decode import compare, ours, transformers
from benchmarks.figure import Measured

AT_LEAST = 1.4


def measure() -> Measured:
    """The least ratio over the batches."""
    return compare(("ours", "transformers"), ours, transformers, AT_LEAST)
