"""Meter: a worker's account of its own time, merged into spans of readable length.

Consecutive slices of the same kind and set of runs become one span until it is ``SPAN_S`` long; a
change of either, or a gap, starts a new one.
"""

from dataclasses import replace
from typing import TypeVar

from plait.core.ids import RunId
from plait.runtime.messages import Span

SPAN_S = 0.25
"""Long enough that a minute of work is a few hundred lines, short enough to see a bubble."""

GAP_S = 0.005
"""A pause longer than this between two slices is idle time and is not papered over."""

N = TypeVar("N", int, float)


class Meter:
    """Collects slices; ``drain`` hands out finished spans."""

    def __init__(self) -> None:
        self._open: Span | None = None
        self._closed: list[Span] = []

    def add(self, span: Span) -> None:
        """Record one slice of work."""
        last = self._open
        if last is not None and _joins(last, span):
            self._open = _join(last, span)
        else:
            self.close()
            self._open = span
        if self._open is not None and self._open.t1 - self._open.t0 >= SPAN_S:
            self.close()

    def close(self) -> None:
        """End the span under way (nothing more to do for now)."""
        if self._open is not None:
            self._closed.append(self._open)
            self._open = None

    def drain(self) -> tuple[Span, ...]:
        """Finished spans since the last call."""
        spans, self._closed = tuple(self._closed), []
        return spans


def _joins(a: Span, b: Span) -> bool:
    same = a.kind == b.kind and a.tokens_by_run.keys() == b.tokens_by_run.keys()
    return same and b.t0 - a.t1 < GAP_S


def _join(a: Span, b: Span) -> Span:
    took_a, took_b = a.t1 - a.t0, b.t1 - b.t0
    threads = (a.threads * took_a + b.threads * took_b) / (took_a + took_b or 1.0)
    return replace(
        b,
        t0=a.t0,
        threads=round(threads, 2),
        tokens=a.tokens + b.tokens,
        steps=a.steps + b.steps,
        n_preempted=a.n_preempted + b.n_preempted,
        n_evicted=a.n_evicted + b.n_evicted,
        tokens_by_run=_sum(a.tokens_by_run, b.tokens_by_run),
        short_of_blocks=a.short_of_blocks | b.short_of_blocks,
        kv_block_s_by_run=_sum(a.kv_block_s_by_run, b.kv_block_s_by_run),
    )


def _sum(a: dict[RunId, N], b: dict[RunId, N]) -> dict[RunId, N]:
    out = dict(a)
    for key, value in b.items():
        out[key] = out[key] + value if key in out else value
    return out
