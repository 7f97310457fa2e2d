"""Queue waits: why each run behind the first of a queue waits, in words once somebody asks.

Left to others: the order of the queue, and what is said besides (``note``).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from plait.core.ids import RunId
from plait.core.plan import LazyWaits, Wait
from plait.core.view import WorkItem
from plait.policies import waits

Order = tuple[Sequence[WorkItem], Sequence[Wait]]
"""Heads in order of service, and the waits of those that are not in the queue."""


class QueueWaits(LazyWaits):
    """Of the runs behind the first ``n_served`` of a queue, then of those that are held."""

    __slots__ = ("_ahead_s", "_n", "_n_served", "_note", "_order", "_ordered")

    def __init__(
        self,
        *,
        n: int,
        n_served: int,
        order: Callable[[], Order],
        note: Callable[[RunId], str] = lambda run_id: "",
    ) -> None:
        """``n``: how many waits there are; ``order`` is called once, if at all."""
        self._n, self._n_served, self._order, self._note = n, n_served, order, note
        self._ordered: Order | None = None
        self._ahead_s: Sequence[float] = ()

    def __len__(self) -> int:
        return self._n

    def reasons(self) -> Iterator[tuple[RunId, str]]:
        """Run and reason of each, in order."""
        queue, held = self._known()
        for item in queue[self._n_served :]:
            yield item.run_id, waits.TRAINER_BUSY
        for wait in held:
            yield wait.run_id, wait.reason

    def word(self, place: int) -> Wait:
        """Behind whom it stands, and how much work is before it."""
        queue, held = self._known()
        at = self._n_served + place
        if at >= len(queue):
            return held[at - len(queue)]
        if not self._ahead_s:
            self._ahead_s = list(accumulate((item.est_s for item in queue), initial=0.0))
        item = queue[at]
        before, ahead_s = queue[at - 1].run_id, self._ahead_s[at]
        detail = f"{item.kind} stands behind {before}, about {ahead_s:.1f} s of work"
        return Wait(
            run_id=item.run_id,
            reason=waits.TRAINER_BUSY,
            detail=waits.join(detail, self._note(item.run_id)),
            position=place + 1,
        )

    def _known(self) -> Order:
        if self._ordered is None:
            self._ordered = self._order()
        return self._ordered
