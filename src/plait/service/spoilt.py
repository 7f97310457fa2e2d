"""Spoilt: what must not be done since something before it failed. Pure.

A step fails if a gradient before it does that had not ended when the step arrived, for its client
cannot have meant that; a gradient whose failure its client could see is the client's own affair.
Nothing can be done with a model whose first request, which makes it, has failed. What fails so is
the fault of whoever that failure is, and says which request it was.
"""

from collections.abc import Mapping

from plait.core.errors import NotDone
from plait.runtime.gradients import not_done
from plait.service.entry import Entry
from plait.service.ports import Failed
from plait.service.work import Kind

STATUS = {"user": 409, "server": 500, "unknown": 500}


def spoilt(entries: Mapping[int, Entry], entry: Entry) -> NotDone | None:
    """Why a step (or a gradient that was asked for with those before it) must not be made; None if
    it may. ``entries``: by number, those of its line."""
    first = None
    for seq in range(entry.seq - 1, -1, -1):
        before = entries.get(seq)
        if before is None or (before.kind is Kind.OPTIM_STEP and not before.failed):
            break
        if (
            before.kind is Kind.FORWARD_BACKWARD
            and before.failed
            and before.ended_at is not None
            and before.ended_at >= entry.accepted_at
        ):
            first = before  # what failed behind it did so with it
    if first is None or first.fault is None:
        return None
    return not_done(_told(first), STATUS[first.fault])


def unmade(first: Entry | None) -> NotDone:
    """Why nothing can be done with a model; ``first``: the request that makes it, if known."""
    fault = None if first is None else first.fault
    told = "request 0" if first is None else _told(first)
    return NotDone(
        f"not done: the model was not made ({told}); make another one",
        http_status=STATUS[fault or "user"],
    )


def _told(failed: Entry) -> str:
    why = failed.outcome.error if isinstance(failed.outcome, Failed) else "its answer says why"
    return f"request {failed.seq}: {why}"
