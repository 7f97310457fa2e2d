"""Checkpoints on every database."""

import pytest

from plait.core.errors import NotFound, RequestError, StoreError
from plait.core.ids import LOCAL_TENANT, RunId, TenantId
from plait.store.rows import CheckpointRow
from plait.store.store import Store

RUN, OTHER, ANN = RunId("run-1"), RunId("run-2"), TenantId("ann")


def put(
    store: Store,
    name: str,
    *,
    version: int = 1,
    run_id: RunId = RUN,
    size_bytes: int = 0,
    expires_at: float | None = None,
    pinned: bool = False,
    automatic: bool = False,
) -> CheckpointRow:
    return store.checkpoints.put(
        run_id,
        name,
        version=version,
        path=f"checkpoints/{name}",
        kind="training",
        size_bytes=size_bytes,
        expires_at=expires_at,
        pinned=pinned,
        automatic=automatic,
        user_metadata={"note": "é"},
        now=float(version),
    )


def test_checkpoints_are_replaced_unless_pinned(store: Store) -> None:
    put(store, "best", version=1)
    put(store, "best", version=2)
    assert [(c.name, c.version) for c in store.checkpoints.list(RUN)] == [("best", 2)]
    store.checkpoints.set_pinned(RUN, "best", True)
    with pytest.raises(RequestError, match="pinned"):
        put(store, "best", version=3)
    store.checkpoints.set_pinned(RUN, "best", False)
    assert put(store, "best", version=3) in store.checkpoints.list(RUN)
    with pytest.raises(NotFound, match="no checkpoint worst"):
        store.checkpoints.set_pinned(RUN, "worst", True)


def test_a_checkpoint_is_kept_with_its_owners_wishes(store: Store) -> None:
    row = put(store, "weights/a", size_bytes=2**40)
    assert store.checkpoints.find(RUN, "weights/a") == row
    assert (row.user_metadata, row.automatic, row.public) == ({"note": "é"}, False, False)
    store.checkpoints.set_public(RUN, "weights/a", True)
    store.checkpoints.set_expiry(RUN, "weights/a", 9.0)
    changed = store.checkpoints.find(RUN, "weights/a")
    assert changed is not None
    assert (changed.public, changed.expires_at) == (True, 9.0)
    assert store.checkpoints.find(OTHER, "weights/a") is None
    assert store.checkpoints.find(RUN, "sampler_weights/a") is None


def test_a_tenants_checkpoints_are_those_of_its_runs(store: Store) -> None:
    theirs = RunId("theirs")
    store.runs.create(theirs, tenant_id=ANN, name="x", spec={}, now=1.0)
    put(store, "a", version=1, size_bytes=5)
    put(store, "b", version=2, size_bytes=2**40, run_id=OTHER)
    put(store, "c", version=3, size_bytes=7, run_id=theirs)
    checkpoints = store.checkpoints
    assert [c.name for c in checkpoints.of_tenant(LOCAL_TENANT)] == ["b", "a"]
    assert [c.name for c in checkpoints.of_tenant(ANN)] == ["c"]
    stored = [checkpoints.bytes_of_tenant(t, now=0.0) for t in (LOCAL_TENANT, ANN)]
    assert stored == [2**40 + 5, 7]
    assert checkpoints.bytes_of_tenant(TenantId("bob"), now=0.0) == 0
    put(store, "over", version=4, size_bytes=100, run_id=theirs, expires_at=5.0)
    put(store, "ours", version=5, size_bytes=100, run_id=theirs, automatic=True)
    assert [checkpoints.bytes_of_tenant(ANN, now=t) for t in (4.0, 5.0)] == [107, 7]
    assert checkpoints.n_by_run(ANN) == {theirs: 2}, "the schedule's are not counted"
    assert checkpoints.n_by_run(LOCAL_TENANT) == {RUN: 1, OTHER: 1}
    checkpoints.set_pinned(theirs, "over", True)
    assert checkpoints.bytes_of_tenant(ANN, now=5.0) == 107, "it stays"


def test_what_has_expired_is_found_unless_pinned(store: Store) -> None:
    put(store, "a", expires_at=5.0)
    put(store, "b", expires_at=5.0, pinned=True)
    put(store, "c", expires_at=6.0)
    put(store, "d")
    assert store.checkpoints.expired(4.9) == []
    assert [c.name for c in store.checkpoints.expired(5.0)] == ["a"]
    assert [c.name for c in store.checkpoints.expired(9.0)] == ["a", "c"]


def test_many_are_deleted_at_once_but_none_that_is_pinned(store: Store) -> None:
    for name in ("a", "b", "c"):
        put(store, name, pinned=name == "b")
    gone = store.checkpoints.delete_many([(RUN, n) for n in ("a", "b", "c", "nothing")])
    assert [c.name for c in gone] == ["a", "c"]
    assert [c.name for c in store.checkpoints.list(RUN)] == ["b"]


def test_what_has_expired_is_deleted_unless_it_has_more_time_by_then(store: Store) -> None:
    for name in ("a", "b", "c"):
        put(store, name, expires_at=5.0, pinned=name == "c")
    store.checkpoints.set_expiry(RUN, "b", None)
    assert [c.name for c in store.checkpoints.delete_expired(9.0)] == ["a"]
    assert [c.name for c in store.checkpoints.list(RUN)] == ["b", "c"]


def test_a_checkpoint_of_no_run_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="no run ghost"):
        put(store, "a", run_id=RunId("ghost"))
