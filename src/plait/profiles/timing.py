"""Expected service times of a run's operations and rollouts, from recent measurements.

Operations that have tokens are measured per token, the others per call. A prior stands in until
there is history and is outweighed by it: it counts as ``PRIOR_TOKENS`` tokens (or one call).

Invariants: estimates are positive and finite; values are immutable; nothing here reads a clock.
Left to others: which kinds there are (``forward_backward``, ``optim_step``, ``rollout`` …).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

WINDOW_DECAY = 0.8
"""Weight of the past at each new measurement: about five deep, to ride out one noisy neighbour."""
PRIOR_TOKENS = 64.0
"""Weight of the prior: a single real batch outweighs it."""
PRIOR_S_PER_TOKEN = 1e-3
"""A small model on a CPU core; wrong by 100× on a GPU, and then gone after one measurement."""
PRIOR_S_PER_CALL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingObservation:
    """One finished piece of work."""

    kind: str
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTiming:
    """Fading sums of one kind of work."""

    calls: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingProfile:
    """A run's recent service times by kind."""

    kinds: Mapping[str, KindTiming] = field(default_factory=dict)
    prior_s_per_token: float = PRIOR_S_PER_TOKEN
    prior_s_per_call: float = PRIOR_S_PER_CALL


def update(profile: TimingProfile, seen: TimingObservation) -> TimingProfile:
    """The profile after one more measurement; a negative or non-finite duration is ignored."""
    if not isfinite(seen.seconds) or seen.seconds < 0:
        return profile
    past = profile.kinds.get(seen.kind, KindTiming())
    now = KindTiming(
        calls=WINDOW_DECAY * past.calls + 1.0,
        tokens=WINDOW_DECAY * past.tokens + max(0, seen.tokens),
        seconds=WINDOW_DECAY * past.seconds + seen.seconds,
    )
    return TimingProfile(
        kinds={**profile.kinds, seen.kind: now},
        prior_s_per_token=profile.prior_s_per_token,
        prior_s_per_call=profile.prior_s_per_call,
    )


def expected_s(profile: TimingProfile, kind: str, tokens: int = 0) -> float:
    """Expected seconds of one call of ``kind``; ``tokens=0`` where it has none."""
    past = profile.kinds.get(kind, KindTiming())
    if tokens <= 0:
        return (past.seconds + profile.prior_s_per_call) / (past.calls + 1.0)
    seconds = past.seconds if past.tokens > 0 else 0.0
    prior_s = PRIOR_TOKENS * profile.prior_s_per_token
    return tokens * (seconds + prior_s) / (past.tokens + PRIOR_TOKENS)
