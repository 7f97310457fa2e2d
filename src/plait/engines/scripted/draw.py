"""Drawing a token: temperature, top-k, top-p and a counter-based random number.

The number depends on (seed, sample index, position) alone: no stream is shared between samples, so
batch composition cannot change a draw.
"""

import hashlib

import numpy as np

from plait.core.operations import SamplingParams
from plait.engines.scripted.policy import Array


def uniform(seed: int, index: int, position: int) -> float:
    """A number in [0, 1) for one token of one sample."""
    digest = hashlib.blake2b(f"{seed}/{index}/{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / float(1 << 53)


def choose(logits_V: Array, params: SamplingParams, u: float) -> int:
    """The token at quantile ``u`` of the filtered distribution; the likeliest at temperature 0."""
    if params.temperature == 0:
        return int(logits_V.argmax())
    scaled_V = logits_V / params.temperature
    weights_V = np.exp(scaled_V - scaled_V.max())
    order_V = np.argsort(-weights_V, kind="stable")
    keep = len(order_V) if params.top_k == 0 else min(params.top_k, len(order_V))
    kept = weights_V[order_V[:keep]]
    cumulative = np.cumsum(kept / kept.sum())
    if params.top_p < 1:
        # The smallest set whose mass reaches top_p, and never an empty one.
        last = int(np.searchsorted(cumulative, params.top_p)) + 1
        cumulative = cumulative[:last] / cumulative[min(last, len(cumulative)) - 1]
    place = int(np.searchsorted(cumulative, u, side="right"))
    return int(order_V[min(place, len(cumulative) - 1)])
