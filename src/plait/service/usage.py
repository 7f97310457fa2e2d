"""Usage: the ledger, the quota and the events of a tenant, read back.

What is written there, the runtime writes with the work itself; here it is only summed.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from plait.core.ids import TenantId
from plait.runtime.ledger import PROMPT, SAMPLED
from plait.service.access import Tenant
from plait.service.names import model_of
from plait.service.ports import House, Who
from plait.store.usage import UsageRow

UNITS = {
    "requests_per_s": "requests/s",
    "open_requests": "requests",
    "body_bytes": "bytes",
    "tokens_per_min": "tokens/min",
    "device_s": "s",
    "runs": "runs",
    "storage_bytes": "bytes",
}
PART = 1000
"""Checkpoints that are summed at a time."""


class UsageLine(BaseModel):
    """Of one run, or of one day."""

    run_id: str | None = None
    day: str | None = None
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    device_s: float = 0.0
    storage_bytes: int = 0


class UsageView(BaseModel):
    """The ledger of a tenant."""

    usage: list[UsageLine]
    total: UsageLine


class QuotaLine(BaseModel):
    """One limit, and what is used of it; null where nobody counts, or nothing is limited."""

    limit: float | None
    used: float | None
    unit: str


class QuotaView(BaseModel):
    """All limits of a tenant."""

    tenant_id: str
    weight: float
    priority: int
    limits: dict[str, QuotaLine]
    waiting: str
    """Why its work is held back now, if it is."""


class EventLine(BaseModel):
    """Something that happened."""

    event_id: int
    at: float
    kind: str
    run_id: str | None
    job_id: str | None
    detail: dict[str, Any]


class EventsView(BaseModel):
    """Events, oldest first."""

    events: list[EventLine]


async def usage_of(house: House, tenant_id: TenantId, by: str, since: str, until: str) -> UsageView:
    """The ledger by run or by day."""
    rows: list[UsageRow] = await asyncio.to_thread(
        house.store.usage.days, tenant_id, since=since, until=until
    )
    lines: dict[str, UsageLine] = defaultdict(UsageLine)
    for row in rows:
        _add(lines[row.run_id if by == "run" else row.day], row)
    for key, line in lines.items():
        if by == "run":
            line.run_id = model_of(key)
        else:
            line.day = key
    total = _summed(lines.values())
    total.storage_bytes = await stored_bytes(house, tenant_id)
    return UsageView(usage=list(lines.values()), total=total)


async def quota_of(house: House, tenant: Tenant) -> QuotaView:
    """Limits and what is used of them."""
    used: dict[str, float] = dict(house.access.limits.used(tenant.tenant_id))
    used["storage_bytes"] = await stored_bytes(house, tenant.tenant_id)
    hold = house.access.limits.hold(tenant.tenant_id)
    return QuotaView(
        tenant_id=tenant.tenant_id,
        weight=tenant.weight,
        priority=tenant.priority,
        limits={
            name: QuotaLine(limit=limit, used=used.get(name), unit=UNITS[name])
            for name, limit in tenant.limits.model_dump().items()
        },
        waiting="" if hold is None else hold.reason,
    )


async def stored_bytes(house: House, tenant_id: TenantId) -> int:
    """Bytes of a tenant's checkpoints, as its quota counts them."""
    who, total, offset = Who(tenant_id=tenant_id), 0, 0
    while True:
        page = await house.models.checkpoints(who, model_id=None, limit=PART, offset=offset)
        total += sum(info.size_bytes for info in page.items)
        offset += PART
        if not page.items or offset >= page.total:
            return total


async def events_of(house: House, tenant_id: TenantId, after: int, limit: int) -> EventsView:
    """A tenant's events behind a number."""
    rows = await asyncio.to_thread(
        house.store.events.after, after, tenant_id=tenant_id, limit=limit
    )
    return EventsView(
        events=[
            EventLine(
                event_id=row.event_id,
                at=row.at,
                kind=row.kind,
                run_id=None if row.run_id is None else model_of(row.run_id),
                job_id=row.job_id,
                detail=row.detail,
            )
            for row in rows
        ]
    )


def _add(line: UsageLine, row: UsageRow) -> None:
    line.device_s += row.device_s
    if row.kind == SAMPLED:
        line.sampled_tokens += row.tokens
    elif row.kind == PROMPT:
        line.prompt_tokens += row.tokens
    else:
        line.trained_tokens += row.tokens


def _summed(lines: Iterable[UsageLine]) -> UsageLine:
    total = UsageLine()
    for line in lines:
        total.prompt_tokens += line.prompt_tokens
        total.sampled_tokens += line.sampled_tokens
        total.trained_tokens += line.trained_tokens
        total.device_s += line.device_s
    return total
