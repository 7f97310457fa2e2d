"""Filters: which groups can teach anything, as a value with its counts.

A group whose advantages are all 0 (every sample right, or every one wrong) has no gradient from its
rewards. It is counted and left out of the work. What is left out keeps its place in the loss's
divisor (``normalisation``), so skipping changes the work and not the update.
"""

from dataclasses import dataclass

from plait.algos.advantages import Advantages


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What the groups of one step are good for."""

    with_signal: tuple[int, ...]
    """Indices of groups with a non-zero advantage."""
    zero_signal: tuple[int, ...]
    """Indices of groups that were scored, all advantages 0."""
    unscored: tuple[int, ...]
    """Indices of groups in which no sample has a reward."""

    @property
    def none(self) -> bool:
        """True if the step has nothing to learn from: a normal outcome, not an error."""
        return not self.with_signal


def signal(advantages_PG: Advantages) -> Signal:
    """Sort groups by what their advantages say."""
    kinds: dict[str, list[int]] = {"with": [], "zero": [], "unscored": []}
    for p, group in enumerate(advantages_PG):
        scored = [a for a in group if a is not None]
        kind = "unscored" if not scored else "with" if any(a != 0 for a in scored) else "zero"
        kinds[kind].append(p)
    return Signal(
        with_signal=tuple(kinds["with"]),
        zero_signal=tuple(kinds["zero"]),
        unscored=tuple(kinds["unscored"]),
    )
