"""Company: whose gradients share the next pass of the trainer (MARLaaS' serial trainer, lifted).

A small batch leaves the machine's matrix products far below their rate, so the gradients of several
runs, each with its own adapter, go through the base model together in less time than one after the
other. Larger ones gain nothing and only wait for each other.

Invariants: the first in the order of service is in the pass; it is joined by those that stand next
behind it, without a gap, so nobody is overtaken and nobody before them waits longer; together they
stay within ``most_rows``.

Left to others: who is first, and who is due behind it (``dispatch``, ``fairness``); what may share
a pass at all (``WorkItem.rows``). Nobody is kept waiting so that company may come.
"""

from collections.abc import Sequence

from plait.core.view import WorkItem

MOST_ROWS = 256
"""Rows of a shared pass. Two gradients of 49, 97 and 129 rows each are 1.39, 1.24 and 1.18 times as
fast together; at 161 nothing is left of it (SmolLM2, two cores; a GPU's products want more)."""


def company(queue: Sequence[WorkItem], most_rows: int) -> tuple[WorkItem, ...]:
    """Who goes along with the first of ``queue``, in its order; ``most_rows=0`` is nobody."""
    if not queue or not queue[0].rows:
        return ()
    joined: list[WorkItem] = []
    rows = queue[0].rows
    for item in queue[1:]:
        rows += item.rows
        if not item.rows or rows > most_rows:
            break
        joined.append(item)
    return tuple(joined)
