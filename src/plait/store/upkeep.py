"""Upkeep: what the store forgets by itself, so that months of service do not fill the disk.

Never what the truth is made of: runs, versions, checkpoints and the ledger stay for good.
"""

from plait.store.store import Store

ANSWERS_S = 86400.0
"""A client that has not asked for an answer in a day is gone."""
BODIES_S = 86400.0
"""So long after their session ended, what its requests carried or named is of no use to anybody."""
REQUESTS_S = 30 * 86400.0
"""So long after their session ended, requests may still be looked into when somebody complains."""
EVENTS_S = 90 * 86400.0
"""Three months of what happened."""
PIECE = 100
"""Rows of each kind at a time: everybody else's writes wait for the transaction, and SQLite takes
2 ms to free an answer of 150 KB."""


def tidy(store: Store, *, now: float, limit: int = PIECE) -> int:
    """Forget a piece of what is old, in a call of the group writer; how many rows."""
    return (
        store.requests.prune(ended_before=now - ANSWERS_S, limit=limit)
        + store.requests.drop_bodies(ended_before=now - BODIES_S, limit=limit)
        + store.requests.forget(ended_before=now - REQUESTS_S, limit=limit)
        + store.losses.forget(ended_before=now - BODIES_S, limit=limit)
        + store.events.prune(before=now - EVENTS_S, limit=limit)
    )
