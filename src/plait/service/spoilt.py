"""Spoilt: optimizer steps that must not be made. Pure.

A step fails if a gradient before it does that had not ended when the step arrived, for its client
cannot have meant that; a gradient whose failure its client could see is the client's own affair.
"""

from collections.abc import Mapping

from plait.runtime.gradients import GRADIENT_FAILED
from plait.service.entry import Entry
from plait.service.work import Kind


def spoilt(entries: Mapping[int, Entry], step: Entry) -> str:
    """Why a step must not be made; empty if it may. ``entries``: by number, those of its line."""
    for seq in range(step.seq - 1, -1, -1):
        entry = entries.get(seq)
        if entry is None or (entry.kind is Kind.OPTIM_STEP and not entry.failed):
            return ""
        if (
            entry.kind is Kind.FORWARD_BACKWARD
            and entry.failed
            and entry.ended_at is not None
            and entry.ended_at >= step.accepted_at
        ):
            return f"{GRADIENT_FAILED} (request {seq})"
    return ""
