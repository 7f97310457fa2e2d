"""Merging: ΔT by hand, room, and no move without a gain."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.ids import RunId, WorkerId
from plait.core.merging import MergeView, Tail
from plait.core.substages import Kind, Substage
from plait.policies.merging import GainMerging


def substage(key, kind, work_s, *, run="a", tokens=4):
    return Substage(
        key=key,
        run_id=RunId(run),
        worker=WorkerId("w"),
        kind=kind,
        work_s=work_s,
        tokens=tokens,
        n_samples=tokens,
    )


def tail(i, work_s, beside_s=None, *, migrate_s=0.5):
    beside = None
    if beside_s is not None:
        beside = substage(f"b/{i}", Kind.TRAIN, beside_s, run="b", tokens=4096)
    return Tail(
        worker=WorkerId(f"w{i}"),
        substage=substage(f"a/{i}", Kind.DECODE, work_s),
        migrate_s=migrate_s,
        beside=beside,
    )


def view(tails, merged_s, *, free=10**9, moved=10**6):
    n = len(tails)
    return MergeView(
        run_id=RunId("a"),
        tails=tuple(tails),
        merged_s=(merged_s,) * n,
        free_bytes=(free,) * n,
        moved_bytes=(moved,) * n,
    )


def twice(own, beside, compute, memory):
    """Everybody takes twice as long beside anybody."""
    return 1.0 if beside is None else 2.0


def decide(v, slowdown=twice):
    return GainMerging(slowdown=slowdown).decide(v, {}, 0.0)[0]


def test_gain_by_hand():
    # T_origin = max(2·10, 2·6) + max(2·8, 2·8) = 36
    # on w0: T_migr = 11 + 0.5 + max(2·8, 8) = 27.5, a gain of 8.5; the same on w1, so the first.
    plan = decide(view([tail(0, 10.0, 8.0), tail(1, 6.0, 8.0)], 11.0))
    assert plan.target == "w0"
    assert plan.gain_s == pytest.approx(8.5)
    assert "8.50 s of 36.00 s" in plan.reason


def test_the_target_is_where_the_neighbour_minds_least():
    # On w1, beside a short neighbour: 11 + 0.5 + max(2·1, 8) = 19.5; on w0: 11 + 0.5 + 16 = 27.5.
    plan = decide(view([tail(0, 10.0, 8.0), tail(1, 6.0, 1.0)], 11.0))
    assert plan.target == "w1"


def test_a_move_that_costs_more_than_it_saves_is_left():
    plan = decide(view([tail(0, 10.0, 8.0, migrate_s=9.0), tail(1, 6.0, 8.0, migrate_s=9.0)], 11.0))
    assert plan.target is None
    assert plan.gain_s == pytest.approx(0.0)


def test_without_neighbours_nothing_is_gained():
    plan = decide(view([tail(0, 10.0), tail(1, 6.0)], 11.0))
    assert plan.target is None
    assert plan.gain_s < 0


def test_a_worker_without_room_is_no_target():
    assert decide(view([tail(0, 10.0, 8.0), tail(1, 6.0, 8.0)], 11.0, free=0)).target is None


def test_one_tail_alone_stays():
    assert decide(view([tail(0, 10.0, 8.0)], 10.0)).target is None


@given(
    works=st.lists(st.floats(0.1, 50.0), min_size=2, max_size=5),
    besides=st.floats(0.1, 50.0),
    migrate_s=st.floats(0.0, 20.0),
)
def test_a_chosen_target_is_a_gain_by_the_formula(works, besides, migrate_s):
    tails = [tail(i, w, besides, migrate_s=migrate_s) for i, w in enumerate(works)]
    v = view(tails, max(works) * 1.1)
    plan = GainMerging().decide(v, {}, 0.0)[0]
    assert (plan.target is not None) == (plan.gain_s > 0)
    if plan.target is not None:
        assert plan.target in {t.worker for t in tails}
