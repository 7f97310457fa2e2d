"""The usage ledger on every database."""

import pytest

from plait.core.errors import StoreError
from plait.core.ids import LOCAL_TENANT, RunId, TenantId
from plait.store.store import Store
from plait.store.usage import NO_RUN, UsageRow, Used

RUN, OTHER = RunId("run-1"), RunId("run-2")
DAY_S = 86400.0


def sample(tokens: int, device_s: float = 1.0, n: int = 1) -> Used:
    return Used(kind="sample", device_s=device_s, tokens=tokens, n=n)


def test_usage_adds_up_per_run_and_tenant(store: Store) -> None:
    store.usage.charge(LOCAL_TENANT, [(RUN, sample(10)), (OTHER, sample(1, 2.0))], now=1.0)
    store.usage.charge(LOCAL_TENANT, [(RUN, sample(5, 0.5))], now=2.0 + DAY_S)
    ours, others = store.usage.of_tenant(LOCAL_TENANT)
    assert ours == UsageRow(
        day="",
        tenant_id=LOCAL_TENANT,
        run_id=RUN,
        kind="sample",
        n=2,
        device_s=1.5,
        tokens=15,
    )
    assert (others.run_id, others.tokens) == (OTHER, 1)


def test_usage_is_kept_by_day(store: Store) -> None:
    for day, tokens in ((0, 1), (0, 2), (1, 4), (31, 8)):
        store.usage.charge(LOCAL_TENANT, [(RUN, sample(tokens))], now=DAY_S * day + 5.0)
    days = store.usage.days(LOCAL_TENANT)
    assert [(u.day, u.tokens, u.n) for u in days] == [
        ("1970-01-01", 3, 2),
        ("1970-01-02", 4, 1),
        ("1970-02-01", 8, 1),
    ]
    some = store.usage.days(LOCAL_TENANT, since="1970-01-02", until="1970-01-31")
    assert [u.tokens for u in some] == [4]
    assert store.usage.days(TenantId("ann")) == []


def test_many_are_charged_at_once_or_none(store: Store) -> None:
    store.usage.charge(LOCAL_TENANT, [(RUN, sample(2**40, n=7)), (NO_RUN, sample(3))], now=1.0)
    rows = store.usage.of_tenant(LOCAL_TENANT)
    assert [(u.run_id, u.tokens, u.n) for u in rows] == [(NO_RUN, 3, 1), (RUN, 2**40, 7)]
    with pytest.raises(StoreError):
        store.usage.charge(LOCAL_TENANT, [(RUN, sample(1)), (RUN, sample(2**63))], now=1.0)
    assert store.usage.of_tenant(LOCAL_TENANT) == rows


def test_usage_of_no_tenant_is_refused(store: Store) -> None:
    with pytest.raises(StoreError):
        store.usage.charge(TenantId("ghost"), [(NO_RUN, sample(1))], now=1.0)
