"""Suspects: whose samples a lost rollout worker is laid to. Decides nothing but who goes alone.

A worker that dies says nothing of the cause: some run's sample, or somebody outside. So nobody is
blamed for a death in company. A run that was at work in ``MAX_LOSSES`` deaths without finishing a
sample in between has its samples sent while nobody else's are there; if the worker dies then too,
they are the cause.
"""

from collections.abc import Iterable, Set

from plait.core.ids import RunId

MAX_LOSSES = 2
"""One death may be anybody's doing, two may be chance: from then on it is worth a look."""


class Suspects:
    """Deaths of workers, by the runs that were at work."""

    def __init__(self) -> None:
        self._losses: dict[RunId, int] = {}

    def lost(self, at_work: Set[RunId]) -> RunId | None:
        """A worker has died under samples of these runs; the culprit, if that is certain."""
        for run_id in at_work:
            self._losses[run_id] = self._losses.get(run_id, 0) + 1
        if len(at_work) != 1:
            return None
        (alone,) = at_work
        return alone if self._losses[alone] > MAX_LOSSES else None

    def clear(self, run_id: RunId) -> None:
        """A sample of the run has ended: what came before was not its doing."""
        self._losses.pop(run_id, None)

    def any(self) -> bool:
        """True while it is not clear who is to blame for a death."""
        return bool(self._losses)

    def may_send(self, wanting: Iterable[RunId], at_work: Set[RunId]) -> Set[RunId] | None:
        """Whose samples may go to the worker now; ``None`` is everybody's.

        ``wanting``: runs with samples in flight, sent or not, longest waiting first.
        """
        if not self._losses:
            return None
        suspects = [r for r in wanting if self._losses.get(r, 0) >= MAX_LOSSES]
        if not suspects:
            return None
        alone = next((r for r in suspects if r in at_work), suspects[0])
        return {alone} if at_work <= {alone} else set()
