"""Live views: the runs that have not ended as policies see them, kept from one look to the next.

A view is made anew where something of its run was set, and is the same object otherwise, by which
policies see what has changed (``policies.kept``).

Invariants: the views are what they would be if all were made anew, in the order of submission.
"""

from collections.abc import Callable

from plait.core.ids import RunId
from plait.core.view import RunView


class LiveViews:
    """Of one roster."""

    def __init__(self, changed: dict[RunId, None], make: Callable[[RunId], RunView | None]) -> None:
        """``changed``: runs that may have changed since the last look. ``make``: the view of one
        that lives."""
        self._changed, self._make = changed, make
        self._views: dict[RunId, RunView] = {}
        self._told: tuple[RunView, ...] = ()

    def look(self) -> tuple[RunView, ...]:
        """All of them, now."""
        if not self._changed:
            return self._told
        come: list[RunView] = []
        for run_id in self._changed:
            known, view = self._views.get(run_id), self._make(run_id)
            if known is not None and view is not None and known.order == view.order:
                self._views[run_id] = view
                continue
            self._views.pop(run_id, None)  # it has ended, or is another of the same name
            if view is not None:
                come.append(view)
        # Orders are given out once, in turn, so who has come is behind all others.
        self._views.update((v.run_id, v) for v in sorted(come, key=lambda v: v.order))
        self._changed.clear()
        self._told = tuple(self._views.values())
        return self._told
