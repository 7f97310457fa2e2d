"""Requests on every database: one original per number, one end per request."""

import pytest

from plait.core.errors import NotFound, StoreError
from plait.core.ids import LOCAL_TENANT
from plait.store.requests import Asked
from plait.store.rows import MutationStatus
from plait.store.store import Store
from plait.store.upkeep import ANSWERS_S, BODIES_S, EVENTS_S, REQUESTS_S, tidy

MODEL, OTHER = "s-1:train:0", "s-1:train:1"


@pytest.fixture
def store(store: Store) -> Store:
    store.sessions.open("s-1", tenant_id=LOCAL_TENANT, told={}, now=1.0)
    return store


def ask(
    store: Store, seq: int, *, owner: str = MODEL, body: bytes = b"body", kind: str = "forward"
) -> Asked:
    return store.requests.accept(
        owner, seq, tenant_id=LOCAL_TENANT, session_id="s-1", kind=kind, body=body, now=float(seq)
    )


def test_the_same_number_again_answers_the_original(store: Store) -> None:
    assert ask(store, 1, body=b"\0\xff").new
    again = ask(store, 1, body=b"other", kind="optim_step")
    assert (again.new, again.row.kind, again.row.status) == (
        False,
        "forward",
        MutationStatus.ACCEPTED,
    )
    assert store.requests.body(MODEL, 1) == b"\0\xff"
    store.requests.finish(MODEL, 1, b"\0answer", now=9.0)
    assert ask(store, 1).row.answer == b"\0answer"
    assert ask(store, 1, owner=OTHER).new, "numbers belong to their model"


def test_numbers_come_in_any_order_and_may_leave_gaps(store: Store) -> None:
    assert store.requests.after(MODEL) == []
    for seq in (3, 2, 7, 0, 2**40):
        assert ask(store, seq).new
    assert [r.seq for r in store.requests.after(MODEL)] == [0, 2, 3, 7, 2**40]
    assert [r.seq for r in store.requests.after(MODEL, 3)] == [7, 2**40]


def test_a_request_ends_once(store: Store) -> None:
    ask(store, 1)
    ask(store, 2)
    assert store.requests.finish(MODEL, 1, b"first", now=5.0)
    assert not store.requests.finish(MODEL, 1, b"second", now=6.0)
    assert not store.requests.fail(MODEL, 1, "late", category="server", now=6.0)
    assert store.requests.fail(MODEL, 2, "no such loss", category="user", now=6.0)
    assert not store.requests.finish(MODEL, 2, b"late", now=7.0)
    done, failed = store.requests.find(MODEL, 1), store.requests.find(MODEL, 2)
    assert done is not None
    assert failed is not None
    assert (done.status, done.answer, done.finished_at) == (MutationStatus.DONE, b"first", 5.0)
    assert (failed.status, failed.error, failed.category, failed.answer) == (
        MutationStatus.FAILED,
        "no such loss",
        "user",
        None,
    )
    with pytest.raises(NotFound, match="never accepted"):
        store.requests.finish(MODEL, 9, b"", now=1.0)


def test_a_skipped_number_is_used_up(store: Store) -> None:
    skipped = store.requests.skip(
        MODEL,
        1,
        tenant_id=LOCAL_TENANT,
        session_id="s-1",
        kind="skipped",
        error="it was not protobuf",
        category="user",
        now=4.0,
    )
    assert skipped.new
    late = ask(store, 1)
    assert (late.new, late.row.status, late.row.error) == (
        False,
        MutationStatus.FAILED,
        "it was not protobuf",
    )
    assert store.requests.body(MODEL, 1) is None
    assert store.requests.owners_unended() == []


def test_what_a_restart_has_to_carry_on_with(store: Store) -> None:
    for seq in (1, 2):
        ask(store, seq)
    ask(store, 1, owner=OTHER)
    store.requests.finish(MODEL, 2, b"x", now=5.0)
    assert store.requests.owners_unended() == [MODEL, OTHER]
    assert [r.finished_at for r in store.requests.after(MODEL)] == [None, 5.0]
    store.requests.fail(MODEL, 1, "over", category="user", now=6.0)
    assert store.requests.owners_unended() == [OTHER]


def test_bodies_go_when_their_effect_is_kept_elsewhere(store: Store) -> None:
    for seq in (1, 2, 3, 4):
        ask(store, seq)
    for seq in (1, 2, 4):
        store.requests.finish(MODEL, seq, b"x", now=5.0)
    assert store.requests.shed(MODEL, 3) == 2
    kept = [store.requests.body(MODEL, seq) for seq in (1, 2, 3, 4)]
    assert kept == [None, None, b"body", b"body"]
    assert not ask(store, 1).new, "the number stays used"


def test_answers_go_with_age(store: Store) -> None:
    for seq in (1, 2, 3):
        ask(store, seq)
        store.requests.finish(MODEL, seq, b"x", now=float(seq))
    assert store.requests.prune(ended_before=2.5, limit=1) == 1
    assert store.requests.prune(ended_before=2.5, limit=2) == 1
    assert store.requests.prune(ended_before=2.5) == 0
    rows = [store.requests.find(MODEL, seq) for seq in (1, 2, 3)]
    assert [r.answer for r in rows if r is not None] == [None, None, b"x"]
    assert {r.status for r in rows if r is not None} == {MutationStatus.DONE}


def test_a_request_of_no_session_is_refused(store: Store) -> None:
    with pytest.raises(StoreError):
        store.requests.accept(
            MODEL,
            1,
            tenant_id=LOCAL_TENANT,
            session_id="s-9",
            kind="forward",
            body=b"",
            now=1.0,
        )
    assert store.requests.find(MODEL, 1) is None
    assert store.requests.body(MODEL, 1) is None


def test_a_number_beyond_what_a_database_holds_is_refused(store: Store) -> None:
    with pytest.raises(StoreError):
        ask(store, 2**63)
    assert ask(store, 1).new


def test_a_commit_and_the_answer_that_tells_of_it_are_one_transaction(store: Store) -> None:
    run_id = store.runs.list()[0].run_id
    ask(store, 1)
    store.mutations.accept(run_id, 1, "optim_step", now=1.0)

    def commit(version: int) -> None:
        with store.database.write():
            store.requests.finish(MODEL, 1, b"stepped", now=2.0)
            store.mutations.commit_version(run_id, version, 1, "v", now=2.0)

    store.mutations.commit_version(run_id, 5, 1, "v", now=2.0)
    with pytest.raises(StoreError, match="only rise"):
        commit(4)
    row = store.requests.find(MODEL, 1)
    assert row is not None
    assert row.status is MutationStatus.ACCEPTED, "undone with the commit"


def test_what_nobody_asks_for_any_more_goes_a_piece_at_a_time(store: Store) -> None:
    store.sessions.open("s-2", tenant_id=LOCAL_TENANT, told={}, now=1.0)
    for seq in range(3):
        ask(store, seq)
        store.requests.finish(MODEL, seq, b"x", now=2.0)
    store.requests.accept(
        "s-2:train:0", 0, tenant_id=LOCAL_TENANT, session_id="s-2", kind="k", body=b"", now=2.0
    )
    store.events.add("old", now=1.0)
    store.events.add("new", now=EVENTS_S + 1.0)
    store.sessions.finish("s-1", reason="success", now=3.0)
    assert tidy(store, now=2.0 + ANSWERS_S) == 0
    row = store.requests.find(MODEL, 1)
    assert row is not None
    assert row.answer == b"x"
    assert tidy(store, now=2.5 + ANSWERS_S, limit=2) == 2
    assert tidy(store, now=2.5 + ANSWERS_S, limit=2) == 1
    row = store.requests.find(MODEL, 1)
    assert row is not None
    assert row.answer is None
    assert store.requests.body(MODEL, 1) == b"body"
    assert tidy(store, now=2.9 + BODIES_S) == 0
    assert tidy(store, now=3.5 + BODIES_S) == 3, "its session has ended"
    assert store.requests.body(MODEL, 1) is None
    assert store.requests.find(MODEL, 1) is not None
    assert tidy(store, now=3.5 + REQUESTS_S) == 3
    assert store.requests.after(MODEL) == []
    assert store.requests.body(MODEL, 1) is None
    assert store.requests.owners_unended() == ["s-2:train:0"], "its session lives"
    assert [e.kind for e in store.events.after()] == ["old", "new"]
    assert tidy(store, now=1.5 + EVENTS_S) == 1
    assert [e.kind for e in store.events.after()] == ["new"]


def test_one_body_is_dropped_alone(store: Store) -> None:
    for seq in (1, 2):
        ask(store, seq)
    store.requests.drop_body(MODEL, 1)
    store.requests.drop_body(MODEL, 9)
    assert store.requests.body(MODEL, 1) is None
    assert store.requests.body(MODEL, 2) is not None
    assert store.requests.find(MODEL, 1) is not None, "its row stays"


def test_the_store_knows_the_bytes_of_the_bodies_it_has(store: Store) -> None:
    assert store.requests.sizes(MODEL) == {}
    for seq, body in enumerate((b"", b"\0\xff", b"12345", b"gone")):
        ask(store, seq, body=body)
    ask(store, 1, owner=OTHER, body=b"another's")
    store.requests.drop_body(MODEL, 3)
    assert store.requests.sizes(MODEL) == {0: 0, 1: 2, 2: 5}
