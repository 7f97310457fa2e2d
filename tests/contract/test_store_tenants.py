"""Tenants and keys on every database."""

import pytest

from plait.core.errors import NotFound, StoreError
from plait.core.ids import LOCAL_TENANT, JobId, RunId, TenantId
from plait.store.keys import SHOWN
from plait.store.store import Store

ANN, BOB = TenantId("ann"), TenantId("bob")
KEY = "tml-0123456789abcdef"


def test_a_tenant_is_kept_as_it_was_given(store: Store) -> None:
    store.tenants.ensure(ANN, now=2.0)
    row = store.tenants.update(ANN, name="Ann", weight=2.5, priority=1, limits={"runs": 3})
    assert store.tenants.get(ANN) == row
    assert (row.weight, row.priority, row.limits, row.disabled) == (2.5, 1, {"runs": 3}, False)
    assert [t.tenant_id for t in store.tenants.list()] == [LOCAL_TENANT, ANN]


def test_what_is_not_given_stays(store: Store) -> None:
    store.tenants.ensure(ANN, now=2.0)
    store.tenants.update(ANN, weight=2.0, limits={"runs": 3})
    row = store.tenants.update(ANN, limits={}, disabled=True)
    assert (row.weight, row.limits, row.disabled) == (2.0, {}, True)
    assert store.tenants.get(ANN) == row
    with pytest.raises(NotFound, match="no tenant bob"):
        store.tenants.update(BOB, weight=1.0)
    assert store.tenants.find(BOB) is None


def test_ensure_makes_a_tenant_once(store: Store) -> None:
    assert store.tenants.ensure(ANN, now=2.0) == store.tenants.ensure(ANN, now=3.0)
    assert store.tenants.get(ANN).created_at == 2.0


def test_a_key_is_not_written_anywhere(store: Store) -> None:
    store.tenants.ensure(ANN, now=1.0)
    row = store.keys.add("k1", KEY, tenant_id=ANN, label="laptop", admin=True, now=2.0)
    assert store.keys.list() == [row]
    assert (row.tenant_id, row.label, row.admin, row.prefix) == (ANN, "laptop", True, KEY[:SHOWN])
    with store.database.read() as connection:
        dump = str(connection.exec_driver_sql("SELECT * FROM api_keys").all())
    assert KEY not in dump


def test_a_key_speaks_for_one_tenant(store: Store) -> None:
    store.tenants.ensure(ANN, now=1.0)
    store.keys.add("k1", KEY, tenant_id=ANN, now=1.0)
    for key_id, key in (("k2", KEY), ("k1", KEY + "x")):
        with pytest.raises(StoreError, match="already"):
            store.keys.add(key_id, key, tenant_id=LOCAL_TENANT, now=1.0)
    with pytest.raises(NotFound, match="no tenant bob"):
        store.keys.add("k3", KEY + "y", tenant_id=BOB, now=1.0)
    assert [k.key_id for k in store.keys.list()] == ["k1"]


def test_a_key_is_revoked_from_the_earliest_time_given(store: Store) -> None:
    store.tenants.ensure(ANN, now=1.0)
    store.keys.add("k1", KEY, tenant_id=ANN, now=1.0)
    store.keys.revoke("k1", now=9.0)
    store.keys.revoke("k1", now=5.0)
    store.keys.revoke("k1", now=7.0)
    assert [k.revoked_at for k in store.keys.list(tenant_id=ANN)] == [5.0]
    with pytest.raises(NotFound, match="no key k9"):
        store.keys.revoke("k9", now=1.0)


def test_text_that_no_database_holds_is_escaped(store: Store) -> None:
    store.tenants.ensure(ANN, now=1.0)
    store.tenants.update(ANN, name="a\0b\ud800c", limits={"note": "x\0y"})
    row = store.tenants.get(ANN)
    assert row.name == "a\\0b\\ud800c"
    assert row.limits == {"note": "x\0y"}


@pytest.mark.parametrize("odd", ["a\0b", "\ud800", "x" * 100_000, "'; DROP TABLE runs; --"])
def test_an_odd_id_is_an_unknown_one(store: Store, odd: str) -> None:
    assert store.tenants.find(TenantId(odd)) is None
    assert store.sessions.find(odd) is None
    assert store.samplers.find(odd) is None
    assert store.requests.find(odd, 1) is None
    assert store.runs.find(RunId(odd)) is None
    assert store.checkpoints.find(RunId(odd), odd) is None
    assert store.jobs.find(JobId(odd)) is None
    assert len(store.runs.list()) == 2
