"""KV footprint of a run: the worst case by formula, then the measured residency in its place.

Worst case (after MARLaaS §4.3):

    KV_t = prompts · group · (prompt_len + gen_len) · 2 · layers · kv_heads · head_dim · bytes

here in cache blocks, with the full blocks of a group's shared prompt counted once.

Measured:  Σ blocks·seconds / Σ seconds  over recent rollouts, older ones fading. Most samples end
before their limit and wait for tools with their blocks held or freed, so this is what a rollout
really takes from its neighbours. A rollout that the cache *throttled* (samples queued or preempted
for want of blocks) held less than it wanted; it may raise the estimate, never lower it.

Invariants: an estimate is at least one block and at most the worst case, and the worst case before
the first measurement. Values are immutable; nothing here reads a clock.
"""

from dataclasses import dataclass
from math import ceil

WINDOW_DECAY = 0.7
"""Weight of the past at each new rollout: about three steps deep, since lengths drift as a policy
learns but hardly between neighbouring steps (JigsawRL, Fig. 6)."""


def worst_case_blocks(
    *,
    n_prompts: int,
    group_size: int,
    prompt_tokens: int,
    max_new_tokens: int,
    block_size: int,
    same_prompt: bool = True,
) -> int:
    """Blocks if every sample of a step runs to its limit, all at once.

    ``prompt_tokens`` is the longest prompt; for several turns ``max_new_tokens`` covers them all,
    the environment's tokens included.
    """
    shared_blocks = max(0, prompt_tokens - 1) // block_size if same_prompt else 0
    # The last prompt token is computed by each sample for itself: its logits start the sample.
    own_tokens = prompt_tokens - shared_blocks * block_size + max_new_tokens
    return n_prompts * (shared_blocks + group_size * ceil(own_tokens / block_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class KvObservation:
    """One finished rollout: how long it took and the blocks it held over that time."""

    seconds: float
    block_s: float
    peak_blocks: int
    throttled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KvProfile:
    """A run's recent rollouts, fading."""

    n_rollouts: int = 0
    seconds: float = 0.0
    block_s: float = 0.0
    peak_blocks: int = 0


def update(profile: KvProfile, seen: KvObservation) -> KvProfile:
    """The profile after one more rollout; one of no duration, or throttled low, is ignored."""
    if seen.seconds <= 0:
        return profile
    mean = mean_blocks(profile)
    if seen.throttled and (mean is None or seen.block_s / seen.seconds < mean):
        return profile
    return KvProfile(
        n_rollouts=profile.n_rollouts + 1,
        seconds=WINDOW_DECAY * profile.seconds + seen.seconds,
        block_s=WINDOW_DECAY * profile.block_s + seen.block_s,
        peak_blocks=max(ceil(WINDOW_DECAY * profile.peak_blocks), seen.peak_blocks),
    )


def mean_blocks(profile: KvProfile) -> float | None:
    """Time-weighted mean of blocks held; ``None`` before history."""
    return profile.block_s / profile.seconds if profile.seconds > 0 else None


def expected_blocks(profile: KvProfile, worst_blocks: int) -> int:
    """What admission should reckon with: measured where there is history, else the worst case."""
    mean = mean_blocks(profile)
    if mean is None:
        return worst_blocks
    return min(worst_blocks, max(1, ceil(mean)))
