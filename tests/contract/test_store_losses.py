"""Custom losses on every database: one original per number, so many of a session, as long as it."""

import pytest

from plait.core.errors import StoreError
from plait.core.ids import LOCAL_TENANT, TenantId
from plait.store.losses import LossRow
from plait.store.store import Store
from plait.store.upkeep import BODIES_S, tidy

OTHER = TenantId("other")


@pytest.fixture
def store(store: Store) -> Store:
    for session_id in ("s-1", "s-2"):
        store.sessions.open(session_id, tenant_id=LOCAL_TENANT, told={}, now=1.0)
    return store


def create(
    store: Store,
    seq: int,
    loss: bytes = b"\0loss",
    *,
    session_id: str = "s-1",
    most: int = 9,
    most_of_tenant: int = 9,
) -> LossRow | None:
    return store.losses.create(
        session_id,
        seq,
        tenant_id=LOCAL_TENANT,
        loss=loss,
        most=most,
        most_of_tenant=most_of_tenant,
        now=float(seq),
    )


def test_the_same_number_again_answers_the_original(store: Store) -> None:
    first = create(store, 3)
    assert first == LossRow(
        session_id="s-1", seq=3, tenant_id=LOCAL_TENANT, loss=b"\0loss", created_at=3.0
    )
    assert create(store, 3, b"other") == first
    assert store.losses.find("s-1", 3) == first
    other = create(store, 3, b"other", session_id="s-2")
    assert other is not None
    assert other.loss == b"other", "numbers belong to their session"
    assert store.losses.find("s-1", 4) is None


def test_a_session_has_so_many_at_most(store: Store) -> None:
    assert create(store, 0, most=2)
    assert create(store, 7, most=2)
    assert create(store, 8, most=2) is None
    assert create(store, 7, most=2), "one that is there is answered"
    assert store.losses.find("s-1", 8) is None
    assert create(store, 8, session_id="s-2", most=2)


def test_a_tenant_has_so_many_at_most(store: Store) -> None:
    store.tenants.ensure(OTHER, now=0.0)
    store.sessions.open("s-3", tenant_id=OTHER, told={}, now=1.0)
    store.losses.create("s-3", 0, tenant_id=OTHER, loss=b"", most=9, most_of_tenant=1, now=1.0)
    assert create(store, 0, most_of_tenant=2), "another's do not count"
    assert create(store, 0, session_id="s-2", most_of_tenant=2)
    assert create(store, 1, session_id="s-2", most_of_tenant=2) is None
    assert create(store, 0, session_id="s-2", most_of_tenant=2), "one that is there is answered"


def test_a_loss_of_no_session_is_refused(store: Store) -> None:
    with pytest.raises(StoreError):
        create(store, 1, session_id="s-9")
    assert store.losses.find("s-9", 1) is None


def test_they_go_a_piece_at_a_time_with_their_sessions_requests(store: Store) -> None:
    for seq in range(3):
        create(store, seq)
    create(store, 0, session_id="s-2")
    store.sessions.finish("s-1", reason="success", now=3.0)
    assert tidy(store, now=3.0 + BODIES_S) == 0
    assert tidy(store, now=3.5 + BODIES_S, limit=2) == 2
    assert tidy(store, now=3.5 + BODIES_S, limit=2) == 1
    assert [store.losses.find("s-1", seq) for seq in range(3)] == [None] * 3
    assert store.losses.find("s-2", 0) is not None, "its session lives"
