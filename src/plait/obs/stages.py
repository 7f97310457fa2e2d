"""Stages: what a job was doing when, and what it waited for, from its events.

A ``stage`` event holds until the next one of the same job; ``finished``, ``failed``, ``cancelled``
end the last, and so does ``added``, which a resumed launch writes again. A ``wait`` event with a
reason holds until the next ``wait`` or ``stage`` event; a ``wait`` without a reason only ends the
one before.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

ENDS = ("finished", "failed", "cancelled")
"""Events after which a job does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Something that was so from ``t0`` to ``t1``."""

    what: str
    t0: float
    t1: float


def stages(events: Iterable[dict[str, Any]], end_s: float) -> list[Held]:
    """A job's stages, in order; one still going on is cut at ``end_s``."""
    return list(_held(events, "stage", ("stage", "added", *ENDS), end_s))


def waits(events: Iterable[dict[str, Any]], end_s: float) -> list[Held]:
    """A job's waits by reason, in order."""
    return list(_held(events, "wait", ("wait", "stage", "added", *ENDS), end_s))


def wait_seconds(events: Iterable[dict[str, Any]], end_s: float) -> dict[str, float]:
    """Seconds waited, by reason, longest first."""
    total: defaultdict[str, float] = defaultdict(float)
    for wait in waits(events, end_s):
        total[wait.what] += wait.t1 - wait.t0
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def _held(
    events: Iterable[dict[str, Any]], kind: str, until: tuple[str, ...], end_s: float
) -> Iterator[Held]:
    key = "stage" if kind == "stage" else "reason"
    what, since = "", 0.0
    for event in events:
        if event["kind"] not in until:
            continue
        if what and event["t"] > since:
            yield Held(what=what, t0=since, t1=float(event["t"]))
        what = str(event.get(key) or "") if event["kind"] == kind else ""
        since = float(event["t"])
    if what and end_s > since:
        yield Held(what=what, t0=since, t1=end_s)
