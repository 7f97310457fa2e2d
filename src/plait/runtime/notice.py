"""Notice: what the runs that wait for the same policy are told, looked up when one of them asks.

One for each policy that makes runs wait. A decision puts its waits up in place of the last ones; of
thousands of runs only those are gone through whose reason may have changed, and a place in the
queue is looked for when somebody asks.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from plait.core.ids import RunId
from plait.core.plan import Wait, reasons, unusual


class Notice:
    """The waits of the last decision."""

    def __init__(self) -> None:
        self._waits: Sequence[Wait] = ()
        self._places: dict[RunId, int] | None = None
        self._others: dict[RunId, str] = {}
        """Those that were told another reason than the usual one."""

    def put_up(
        self, waits: Sequence[Wait], newcomers: Iterable[RunId]
    ) -> Iterator[tuple[RunId, str]]:
        """Replace what was there; who may have another reason than before, and which.

        ``newcomers``: of all that wait, those that did not at the decision before, or of which
        something has changed since.
        """
        self._waits, self._places = waits, None
        usual, others = unusual(waits)
        before, self._others = self._others, others
        return self._told(usual, others, before, newcomers)

    def _told(
        self,
        usual: str,
        others: Mapping[RunId, str],
        before: Mapping[RunId, str],
        newcomers: Iterable[RunId],
    ) -> Iterator[tuple[RunId, str]]:
        yield from others.items()
        if not usual:
            return
        yield from ((run_id, usual) for run_id in newcomers if run_id not in others)
        for run_id in before.keys() - others.keys():
            if self._place(run_id) is not None:
                yield run_id, usual

    def of(self, run_id: RunId) -> Wait | None:
        """Why the run waits; ``None`` where it does not."""
        place = self._place(run_id)
        return None if place is None else self._waits[place]

    def _place(self, run_id: RunId) -> int | None:
        if self._places is None:
            self._places = {run_id: at for at, (run_id, _) in enumerate(reasons(self._waits))}
        return self._places.get(run_id)
