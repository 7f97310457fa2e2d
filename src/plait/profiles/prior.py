"""Prior: the graph of a run that has no history, from its job's limits and the machine's speeds.

A turn's lengths are taken as evenly spread up to the limit around the mean that the caller assumes,
so rows fall off linearly and the tail is as long as the limit. The forward steps that follow from
it are cut by the same rule as real ones. The first real step replaces it all (``graph.update``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Protocol

from plait.core.errors import ConfigError
from plait.core.ids import WorkerId
from plait.core.substages import Kind
from plait.profiles.cutting import Forward, Part, ToolWait, cut
from plait.profiles.graph import Graph, StepSeen, update

PIECES = 64
"""Stretches of equal rows into which a turn is divided; finer ones move boundaries by less than a
sixty-fourth of the turn."""


class Speeds(Protocol):
    """Seconds alone on one worker; what the simulator's cost models offer too."""

    @property
    def kv_bytes_per_token(self) -> int: ...

    def decode_s(self, n_rows: int, context_tokens: int, n_adapters: int = 0) -> float: ...

    def prefill_s(self, n_tokens: int, context_tokens: int = 0, n_adapters: int = 0) -> float: ...

    def train_s(self, n_tokens: int, n_samples: int) -> float: ...

    def reference_s(self, n_tokens: int) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a job says of its steps before the first."""

    n_samples: int
    """Of a step, all replicas together."""
    prompt_tokens: int
    max_tokens: int
    """Of one turn."""
    mean_tokens: float
    """Of one turn, as assumed; in (0, ``max_tokens``]."""
    turns: tuple[float, ...] = (1.0,)
    """Probability of 1, 2, … turns."""
    result_tokens: int = 0
    """What a tool or an environment adds between two turns."""
    tool_s: float = 0.0
    blocked: bool = False
    reward_s: float = 0.0
    reference: bool = False
    chunk_tokens: int = 8192
    """Most tokens of one forward step (the usual limit of serving engines for chunked prefill)."""


def estimate(
    limits: Limits,
    speeds: Speeds,
    *,
    rollout: Sequence[WorkerId],
    train: Sequence[WorkerId],
) -> Graph:
    """The expected graph, samples divided evenly; ConfigError for limits that make no sense."""
    _check(limits, rollout, train)
    share, extra = divmod(limits.n_samples, len(rollout))
    seen = {
        worker: _replica(limits, speeds, share + (i < extra)) for i, worker in enumerate(rollout)
    }
    turns = sum(_shares(limits))
    tokens = limits.prompt_tokens + turns * limits.mean_tokens + (turns - 1) * limits.result_tokens
    total = ceil(limits.n_samples * tokens / len(train))
    n_each = ceil(limits.n_samples / len(train))
    held = float(total * speeds.kv_bytes_per_token)
    after = []
    if limits.reward_s > 0:
        after.append(Part(kind=Kind.REWARD, work_s=limits.reward_s, rows=n_each))
    if limits.reference:
        after.append(_dense(Kind.REFERENCE, speeds.reference_s(total), total, n_each, held))
    after.append(_dense(Kind.TRAIN, speeds.train_s(total, n_each), total, n_each, held))
    step = StepSeen(rollout=seen, after=dict.fromkeys(train, after))
    return replace(update(Graph(), step), n_steps=0)


def _dense(kind: Kind, seconds: float, tokens: int, n_samples: int, held: float) -> Part:
    """Keys and values of the batch stand for the activations that grow with it; micro-batches of
    one sample need the least."""
    return Part(
        kind=kind,
        work_s=seconds,
        tokens=tokens,
        rows=n_samples,
        context=tokens / n_samples,
        memory_bytes=held,
        least_bytes=held / n_samples,
    )


def _replica(limits: Limits, speeds: Speeds, n_samples: int) -> tuple[Part, ...]:
    forwards: list[Forward] = []
    waits: list[ToolWait] = []
    now_s, context = 0.0, 0.0
    for turn, share in enumerate(_shares(limits)):
        rows = round(n_samples * share)
        if rows < 1:
            break
        if turn and limits.tool_s > 0:
            # A call of single samples is answered while the others go on.
            start_s = now_s if limits.blocked else max(0.0, now_s - limits.tool_s)
            end_s = start_s + limits.tool_s
            waits.append(ToolWait(t0_s=start_s, t1_s=end_s, blocked=limits.blocked))
            now_s = max(now_s, end_s)
        new = limits.result_tokens if turn else limits.prompt_tokens
        for forward in (
            *_prefill(limits, speeds, rows, new, context),
            *_decode(limits, speeds, rows, context + new),
        ):
            took_s = forward.t1_s
            forwards.append(replace(forward, t0_s=now_s, t1_s=now_s + took_s))
            now_s += took_s
        context += new + limits.mean_tokens
    return cut(forwards, waits)


def _prefill(limits: Limits, speeds: Speeds, rows: int, new: int, context: float) -> list[Forward]:
    total = rows * new
    if total < 1:
        return []
    steps = ceil(total / limits.chunk_tokens)
    return [
        Forward(
            t0_s=0.0,
            t1_s=speeds.prefill_s(total, round(rows * context)),
            tokens=total,
            steps=steps,
            rows=rows,
            context=round(context + new),
            kv_bytes=round(rows * (context + new)) * speeds.kv_bytes_per_token,
        )
    ]


def _decode(limits: Limits, speeds: Speeds, rows: int, context: float) -> list[Forward]:
    """Rows over the turn's forward steps: all until the shortest ends, then linearly fewer."""
    mean, most = limits.mean_tokens, limits.max_tokens
    longest = most if 2 * mean >= most else max(1, ceil(2 * mean))
    shortest = max(0.0, 2 * mean - longest)
    pieces = min(PIECES, longest)
    found = []
    for i in range(pieces):
        begin, end = longest * i // pieces, longest * (i + 1) // pieces
        middle = (begin + end) / 2
        spread = longest - shortest
        alive = 1.0 if middle <= shortest or spread <= 0 else (longest - middle) / spread
        n = max(1, round(rows * alive))
        cached = round(n * (context + middle))
        found.append(
            Forward(
                t0_s=0.0,
                t1_s=(end - begin) * speeds.decode_s(n, cached),
                tokens=n * (end - begin),
                steps=end - begin,
                rows=n,
                context=round(context + middle),
                kv_bytes=cached * speeds.kv_bytes_per_token,
            )
        )
    return found


def _shares(limits: Limits) -> list[float]:
    """Share of the samples that take a first, second, … turn."""
    return [sum(limits.turns[i:]) for i in range(len(limits.turns))]


def _check(limits: Limits, rollout: Sequence[WorkerId], train: Sequence[WorkerId]) -> None:
    if limits.n_samples < 1 or limits.max_tokens < 1 or limits.prompt_tokens < 0:
        raise ConfigError(
            f"a step of {limits.n_samples} samples, {limits.prompt_tokens} prompt and "
            f"{limits.max_tokens} new tokens has no estimate: give positive limits"
        )
    if not 0 < limits.mean_tokens <= limits.max_tokens:
        raise ConfigError(
            f"mean_tokens is {limits.mean_tokens}: give more than 0 and at most max_tokens "
            f"({limits.max_tokens})"
        )
    if min(limits.turns, default=-1.0) < 0 or abs(sum(limits.turns) - 1.0) > 1e-6:
        raise ConfigError(f"turns {limits.turns} are no probabilities: make them add up to 1")
    if not rollout or not train:
        raise ConfigError("a run without workers has no step: name those of rollout and training")
