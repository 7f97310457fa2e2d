"""Resident: the runs whose state is on a training worker, in the order of their ids."""

from bisect import bisect_left, insort

from plait.core.ids import RunId


class Resident:
    """Kept sorted, since policies are told all of them at each decision."""

    def __init__(self, changed: dict[RunId, None]) -> None:
        """``changed`` receives whose state has come or gone."""
        self._changed = changed
        self._sorted: list[RunId] = []
        self._told: tuple[RunId, ...] | None = ()

    def ids(self) -> tuple[RunId, ...]:
        """All of them; the same tuple until one comes or goes."""
        if self._told is None:
            self._told = tuple(self._sorted)
        return self._told

    def add(self, run_id: RunId) -> None:
        """Its state is there."""
        if run_id not in self:
            insort(self._sorted, run_id)
            self._touch(run_id)

    def discard(self, run_id: RunId) -> None:
        """It is not, or not as it should be."""
        if run_id in self:
            del self._sorted[bisect_left(self._sorted, run_id)]
            self._touch(run_id)

    def clear(self) -> None:
        """The worker is another one, with nobody's state on it."""
        for run_id in self._sorted:
            self._changed[run_id] = None
        self._sorted, self._told = [], ()

    def __contains__(self, run_id: RunId) -> bool:
        at = bisect_left(self._sorted, run_id)
        return at < len(self._sorted) and self._sorted[at] == run_id

    def _touch(self, run_id: RunId) -> None:
        self._changed[run_id], self._told = None, None
