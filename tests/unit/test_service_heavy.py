"""Heavy: few at a time, of one tenant one, and no tenant waits for all of another's."""

import asyncio

from plait.core.ids import TenantId
from plait.service.heavy import Heavy

ANN, BEN, CAT = map(TenantId, ("ann", "ben", "cat"))


async def test_turns() -> None:
    heavy, go = Heavy(2), asyncio.Event()
    inside, order = list[TenantId](), list[TenantId]()

    async def one(tenant: TenantId) -> None:
        async with heavy.turn(tenant):
            inside.append(tenant)
            order.append(tenant)
            await go.wait()
            inside.remove(tenant)

    async with asyncio.TaskGroup() as group:
        for tenant in (ANN, ANN, ANN, BEN, CAT):
            group.create_task(one(tenant))
        for _ in range(10):
            await asyncio.sleep(0)
        assert inside == [ANN, BEN], "two at once, and no two of one"
        go.set()
    assert order == [ANN, BEN, CAT, ANN, ANN]
