"""Turnover of a rollout worker's cache: how fast unheld blocks are given up, and what their content
costs to compute again.

Sums over recent forward steps, fading with time, since pressure comes and goes with the rollouts.
Values are immutable; nothing here reads a clock.
"""

from dataclasses import dataclass
from math import log

HALF_LIFE_S = 5.0
"""About the length of a rollout's phase: what was evicted a minute ago says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheProfile:
    """One worker's recent forward steps."""

    at_s: float = 0.0
    tokens: float = 0.0
    busy_s: float = 0.0
    evicted: float = 0.0
    idle_blocks: int = 0
    """Now: blocks that nobody holds, with content that may serve again."""

    @property
    def s_per_token(self) -> float:
        """Seconds of a forward step per token; 0 before the first."""
        return self.busy_s / self.tokens if self.tokens > 0 else 0.0


def update(
    profile: CacheProfile,
    *,
    now: float,
    tokens: int,
    busy_s: float,
    n_evicted: int,
    idle_blocks: int,
) -> CacheProfile:
    """The profile after some more steps."""
    fade = _fade(profile, now)
    return CacheProfile(
        at_s=max(now, profile.at_s),
        tokens=profile.tokens * fade + tokens,
        busy_s=profile.busy_s * fade + busy_s,
        evicted=profile.evicted * fade + n_evicted,
        idle_blocks=idle_blocks,
    )


def evicted_per_s(profile: CacheProfile, now: float) -> float:
    """Blocks with content that are being given up."""
    return float(profile.evicted * _fade(profile, now) * log(2.0) / HALF_LIFE_S)


def _fade(profile: CacheProfile, now: float) -> float:
    return float(0.5 ** (max(0.0, now - profile.at_s) / HALF_LIFE_S))
