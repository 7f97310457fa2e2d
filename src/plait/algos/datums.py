"""Datums: from what happened in a rollout to the training engine's sequences.

A trajectory is a prompt and then segments in the order in which they came: what the policy sampled
(with the log-prob of each token) and what the environment answered. Tokens go through as they were
sampled, never re-tokenised. Only sampled tokens are scored; each is predicted from the position
before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from plait.core.errors import RequestError
from plait.core.operations import Datum


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Tokens of one turn. ``logprobs`` is ``None`` for what the environment said."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """All that one sample saw and drew."""

    prompt: tuple[int, ...]
    segments: tuple[Segment, ...]

    @property
    def n_sampled(self) -> int:
        """Tokens drawn from the policy."""
        return sum(len(s.tokens) for s in self.segments if s.logprobs is not None)

    @property
    def n_tokens(self) -> int:
        """All tokens, the prompt's included."""
        return len(self.prompt) + sum(len(s.tokens) for s in self.segments)


def datum(trajectory: Trajectory, *, advantage: float, weight: float) -> Datum:
    """One sequence with inputs ``weights``, ``advantages`` and ``logprobs``, 0 where not scored.

    What comes after the last sampled token is cut off: nothing is learned from it.
    """
    if not trajectory.prompt:
        raise RequestError("a trajectory has an empty prompt: its first token has no context")
    tokens = list(trajectory.prompt)
    mask = [False] * len(tokens)
    logprobs = [0.0] * len(tokens)
    for segment in trajectory.segments:
        n = len(segment.tokens)
        if segment.logprobs is not None and len(segment.logprobs) != n:
            raise RequestError(f"{n} sampled tokens came with {len(segment.logprobs)} log-probs")
        tokens.extend(segment.tokens)
        mask.extend([segment.logprobs is not None] * n)
        logprobs.extend(segment.logprobs if segment.logprobs is not None else [0.0] * n)
    if not any(mask):
        raise RequestError("a trajectory has no sampled token: there is nothing to train on")
    end = len(mask) - mask[::-1].index(True)
    scored = mask[1:end]
    return Datum(
        input_tokens=tuple(tokens[: end - 1]),
        target_tokens=tuple(tokens[1:end]),
        mask=tuple(scored),
        inputs={
            "weights": tuple(weight if m else 0.0 for m in scored),
            "advantages": tuple(advantage if m else 0.0 for m in scored),
            "logprobs": tuple(logprobs[1:end]),
        },
    )


def with_reference(data: Sequence[Datum], logprobs: Sequence[Sequence[float]]) -> tuple[Datum, ...]:
    """``data`` with ``ref_logprobs``, from a ``Forward`` with the adapter off: per datum the
    log-probs at its scored positions, in order."""
    if len(logprobs) != len(data):
        raise RequestError(f"{len(data)} sequences came with {len(logprobs)} references")
    out = []
    for one, reference in zip(data, logprobs, strict=True):
        if len(reference) != sum(one.mask):
            raise RequestError(
                f"{sum(one.mask)} scored tokens came with {len(reference)} reference log-probs"
            )
        values = iter(reference)
        spread = tuple(next(values) if m else 0.0 for m in one.mask)
        out.append(replace(one, inputs={**one.inputs, "ref_logprobs": spread}))
    return tuple(out)
