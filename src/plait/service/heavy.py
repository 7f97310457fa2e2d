"""Heavy: reading what takes a thread for long (a large body, a job file), few at a time.

Threads are what everybody's short look into the store needs too, and Python runs one of them at a
time. So ``n`` read at once, and of one tenant one at a time: however many it sends, another waits
for one of them only.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from plait.core.ids import TenantId

AT_ONCE = 2
"""Whoever sends a hundred takes no more threads from the others."""


class Heavy:
    """Turns of one kind of reading. For one event loop."""

    def __init__(self, n: int = AT_ONCE) -> None:
        self._room = asyncio.Semaphore(n)
        self._own: defaultdict[TenantId, asyncio.Lock] = defaultdict(asyncio.Lock)

    @asynccontextmanager
    async def turn(self, tenant_id: TenantId) -> AsyncIterator[None]:
        """A turn of a tenant's: first come, first served among the tenants."""
        async with self._own[tenant_id], self._room:
            yield
