"""Noise: the random numbers of a draw, hashed (SplitMix64) from what names the draw.

A draw is named by (seed, sample index, place in the sample), one for a place in the prompt by a
negative number of its own for an index; whatever takes part in it (a token, a
block of tokens) has a number of its own in it. So the noise depends neither on who shares the batch
nor on what was drawn elsewhere.

Shapes: R rows that draw; N numbers of each.
"""

from collections.abc import Sequence

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
"""SplitMix64's increment: 2⁶⁴ over the golden ratio, odd."""

MASK_64 = (1 << 64) - 1


def stream(seed: int, index: int) -> int:
    """Start of the random sequence of sample ``index``, or of a negative number, under ``seed``."""
    return _mix_int(_mix_int(seed & MASK_64) ^ (((index + 1) * GOLDEN) & MASK_64))


def draw_keys(streams_R: Sequence[int], places_R: Sequence[int]) -> np.ndarray:
    """64 bits for place ``places_R`` of each stream: the draw's name."""
    return _nth(np.array(streams_R, dtype=np.uint64), np.array(places_R, dtype=np.uint64))


def exponentials(keys_R: np.ndarray, numbers_RN: np.ndarray) -> np.ndarray:
    """Exponential variates (mean 1, positive, fp64) for number ``numbers_RN`` (or ``numbers_N``) of
    each draw."""
    bits_RN = _nth(keys_R[:, None], numbers_RN.astype(np.uint64))
    uniform_RN = ((bits_RN >> np.uint64(11)) + 0.5) * 2.0**-53
    return -np.log(uniform_RN)


def _nth(start: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Element ``n`` of the SplitMix64 sequence that begins at ``start``."""
    with np.errstate(over="ignore"):
        z = start + (n + np.uint64(1)) * np.uint64(GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _mix_int(z: int) -> int:
    z = (z + GOLDEN) & MASK_64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK_64
    return z ^ (z >> 31)
