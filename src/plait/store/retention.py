"""Retention: which of a run's checkpoints are surplus. A pure function over rows.

Kept are: whatever is pinned; the ``keep_last`` newest of the others; and of those the
``keep_best`` with the highest score (of equal ones, the newer). The same checkpoint may be kept for
both. One whose time is over is surplus whatever else it is, unless it is pinned.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from plait.core.errors import ConfigError
from plait.store.rows import CheckpointRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How many unpinned checkpoints stay; ``keep_last`` None: all of them."""

    keep_last: int | None = None
    keep_best: int = 0

    def __post_init__(self) -> None:
        if self.keep_best < 0 or (self.keep_last is not None and self.keep_last < 0):
            raise ConfigError(f"cannot keep {self}: choose numbers from 0 up")


def surplus(rows: Sequence[CheckpointRow], rule: Rule, *, now: float) -> list[CheckpointRow]:
    """What may go, oldest first."""
    loose = sorted((row for row in rows if not row.pinned), key=_age)
    expired = [row for row in loose if row.expires_at is not None and row.expires_at <= now]
    valid = [row for row in loose if row not in expired]
    if rule.keep_last is None:
        return expired
    scored = sorted((row for row in valid if row.score is not None), key=_worth)
    kept = _last(valid, rule.keep_last) + _last(scored, rule.keep_best)
    return [row for row in loose if row not in kept]


def _last(rows: list[CheckpointRow], n: int) -> list[CheckpointRow]:
    return rows[len(rows) - min(n, len(rows)) :]


def _age(row: CheckpointRow) -> tuple[int, float, str]:
    return row.version, row.created_at, row.name


def _worth(row: CheckpointRow) -> tuple[float, int, float, str]:
    assert row.score is not None
    return row.score, *_age(row)
