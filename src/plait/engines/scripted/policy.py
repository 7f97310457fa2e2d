"""The toy policy: a log-linear bigram model, so that gradients, adapters and log-probs are real.

    logits_V(prev) = Φ_VK · (ψ_K(prev) + θ_K)        θ_K = (alpha / rank) · A_K ⊙ B_K

Φ and ψ are fixed tables (the frozen base); A and B are what a run trains. As in LoRA, A is drawn
from the seed and B is zero, so version 0 equals the base. Only the previous token matters, which
makes a token a pure function of (seed, sample index, position, previous token, adapter).

Suffixes: V vocabulary, K features, N positions.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import RequestError
from plait.core.operations import Ranked
from plait.core.runs import MAX_RANK, TARGETS, LoraSpec

Array = NDArray[np.float64]

N_FEATURES = 8
"""Enough that two adapters prefer different tokens; a token still costs microseconds."""
BASE_SEED = 20_240
"""Any constant: every process must draw the same base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A run's trainable vectors."""

    a_K: Array
    b_K: Array
    scale: float

    @property
    def theta_K(self) -> Array:
        """What the adapter adds to the base's preference."""
        theta_K: Array = self.scale * self.a_K * self.b_K
        return theta_K


def initial(lora: LoraSpec) -> Adapter:
    """Version 0, determined by ``lora`` alone; RequestError if no target or rank is usable."""
    if not 1 <= lora.rank <= MAX_RANK:
        raise RequestError(f"LoRA rank {lora.rank} is not in 1–{MAX_RANK}: choose one that is")
    missing = sorted(set(lora.targets) - set(TARGETS))
    if missing or not lora.targets:
        named = ", ".join(missing) or "nothing"
        raise RequestError(f"LoRA targets match no module: {named}; use {', '.join(TARGETS)}")
    draw = np.random.default_rng(lora.seed)
    return Adapter(
        a_K=draw.standard_normal(N_FEATURES),
        b_K=np.zeros(N_FEATURES),
        scale=lora.alpha / lora.rank,
    )


def logits(vocab_size: int, prev: int, adapter: Adapter | None) -> Array:
    """logits_V after ``prev``."""
    phi_VK, psi_VK = _base(vocab_size)
    prefer_K = psi_VK[prev] if adapter is None else psi_VK[prev] + adapter.theta_K
    logits_V: Array = phi_VK @ prefer_K
    return logits_V


def log_softmax(logits_V: Array) -> Array:
    """Log-probs over the vocabulary."""
    shifted_V = logits_V - logits_V.max()
    logprobs_V: Array = shifted_V - np.log(np.exp(shifted_V).sum())
    return logprobs_V


def likeliest(logprobs_V: Array, k: int) -> Ranked:
    """The ``k`` best tokens with their log-probs."""
    best = np.argsort(-logprobs_V, kind="stable")[:k]
    return tuple((int(token), float(logprobs_V[token])) for token in best)


def grad_logprob(vocab_size: int, target: int, logprobs_V: Array) -> Array:
    """∂ log p(target) / ∂ θ_K = φ(target) − E[φ]."""
    phi_VK, _ = _base(vocab_size)
    grad_K: Array = phi_VK[target] - np.exp(logprobs_V) @ phi_VK
    return grad_K


@lru_cache(maxsize=4)
def _base(vocab_size: int) -> tuple[Array, Array]:
    draw: Any = np.random.default_rng(BASE_SEED)
    phi_VK, psi_VK = draw.standard_normal((2, vocab_size, N_FEATURES)) * 0.7
    phi_VK.setflags(write=False)
    psi_VK.setflags(write=False)
    return phi_VK, psi_VK
