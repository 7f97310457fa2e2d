"""Queue waits: why each run behind the first of a queue waits, in words once somebody asks.

Left to others: the order of the queue, and what is said besides (``note``).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate

from plait.core.ids import RunId
from plait.core.plan import LazyWaits, Wait
from plait.core.view import WorkItem
from plait.policies import waits


def nobody() -> Sequence[Wait]:
    """Is held."""
    return ()


class QueueWaits(LazyWaits):
    """Of the runs behind the first ``n_served`` of a queue, then of those that are held."""

    __slots__ = ("_ahead_s", "_held", "_n", "_n_served", "_note", "_order", "_ordered")

    def __init__(
        self,
        *,
        n: int,
        n_served: int,
        order: Callable[[], Sequence[WorkItem]],
        held: Callable[[], Sequence[Wait]] = nobody,
        note: Callable[[RunId], str] = lambda run_id: "",
    ) -> None:
        """``n``: how many waits there are; ``order``: all heads in order of service, asked for
        once, if at all; ``held``: the waits of those that are not in the queue."""
        self._n, self._n_served, self._order, self._note = n, n_served, order, note
        self._held = cache(held)
        self._ordered: Sequence[WorkItem] | None = None
        self._ahead_s: Sequence[float] = ()

    def __len__(self) -> int:
        return self._n

    @property
    def usual(self) -> str:
        """Who is in the queue waits for the trainer."""
        return waits.TRAINER_BUSY

    def unusual(self) -> Iterable[tuple[RunId, str]]:
        """Who is held."""
        return ((wait.run_id, wait.reason) for wait in self._held())

    def reasons(self) -> Iterator[tuple[RunId, str]]:
        """Run and reason of each, in order."""
        for item in self._queue()[self._n_served :]:
            yield item.run_id, waits.TRAINER_BUSY
        for wait in self._held():
            yield wait.run_id, wait.reason

    def word(self, place: int) -> Wait:
        """Behind whom it stands, and how much work is before it."""
        queue = self._queue()
        at = self._n_served + place
        if at >= len(queue):
            return self._held()[at - len(queue)]
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

    def _queue(self) -> Sequence[WorkItem]:
        if self._ordered is None:
            self._ordered = self._order()
        return self._ordered
