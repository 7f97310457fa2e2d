"""Kept: a policy's state, and with it an index of what follows from it.

A state is JSON values, and a decision may depend on nothing else; finding out from these alone what
comes next costs a pass over thousands of runs at each decision. So a policy may leave an index in
the state that it gives back: sorted queues, and the view that they were made from. What has changed
since is seen by identity, as facts are frozen and whoever makes views keeps those that have not
changed.

Invariants: an index holds nothing that state and view do not determine, so a state without it (one
read back from a trace, or used twice) gives the same plan, later; it has one owner, whoever took
it, and may be changed in place; copies and JSON leave it out.
"""

from typing import Any, Generic, TypeVar

Index = TypeVar("Index")


class Kept(dict[str, Any], Generic[Index]):
    """A state with its index."""

    __slots__ = ("_index",)

    def __init__(self, values: dict[str, Any], index: Index) -> None:
        super().__init__(values)
        self._index: Index | None = index

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return dict, (dict(self),)


def take(state: dict[str, Any], kind: type[Index]) -> Index | None:
    """The index of that kind that was left in ``state``; whoever asks next finds none."""
    if not isinstance(state, Kept) or not isinstance(state._index, kind):
        return None
    index, state._index = state._index, None
    return index
