"""Moves: samples go from a full worker to an idle one while that is worth what it costs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.ids import OpId, WorkerId
from plait.core.plan import MovesPlan
from plait.core.view import MovableSample, MovesView, RolloutLoad
from plait.policies.moves import SPLIT_SAMPLES, EvenOut, StayAll
from plait.policies.registry import known, make

FULL, IDLE = WorkerId("full"), WorkerId("idle")


def view(
    full: int = 20,
    idle: int = 0,
    *,
    waiting: tuple[int, int] = (0, 0),
    known_tokens: int = 100,
    left: int = 100,
    s_per_token: float = 1e-3,
    kv_bytes: int = 1000,
    max_seqs: int = 64,
    lends: bool = False,
    n: int = 1,
) -> MovesView:
    loads = (full, idle)
    return MovesView(
        workers=tuple(
            RolloutLoad(worker_id=w, n_samples=k, n_waiting=q, step_s=0.05)
            for w, k, q in zip((FULL, IDLE), loads, waiting, strict=True)
        ),
        samples=tuple(
            MovableSample(
                op_id=OpId(f"{w}-{i}"),
                worker_id=w,
                n=n,
                tokens_known=known_tokens,
                tokens_left=left,
            )
            for w, k in zip((FULL, IDLE), loads, strict=True)
            for i in range(k // n)
        ),
        max_seqs=max_seqs,
        lends=lends,
        s_per_token=s_per_token,
        kv_bytes_per_token=kv_bytes,
    )


def decided(v: MovesView) -> MovesPlan:
    plan, state = EvenOut().decide(v, {}, 0.0)
    assert state == {}
    return plan


def test_half_of_the_difference_moves_the_newest_first() -> None:
    plan = decided(view())
    assert (plan.source, plan.target) == (FULL, IDLE)
    assert plan.op_ids == tuple(f"full-{i}" for i in range(19, 9, -1))
    assert "20 samples more" in plan.reason


@pytest.mark.parametrize(
    ("changes", "n"),
    [
        ({"full": SPLIT_SAMPLES - 1}, 0),
        ({"full": SPLIT_SAMPLES}, SPLIT_SAMPLES // 2),
        ({"full": SPLIT_SAMPLES + 3, "idle": 4}, 0),
        ({"full": 6, "waiting": (2, 0)}, 0),
        ({"full": 6, "waiting": (3, 0)}, 3),
        ({"full": 60, "waiting": (29, 0), "lends": True}, 0),
        ({"full": 60, "waiting": (30, 0), "lends": True}, 30),
        ({"full": 60, "lends": True}, 0),
        ({"full": 6, "waiting": (3, 0), "known_tokens": 10**6}, 3),
        ({"full": 3, "idle": 2, "waiting": (1, 0)}, 0),
        ({"idle": 3, "waiting": (0, 1)}, 0),
        ({"full": 60, "max_seqs": 4}, 4),
        ({"left": 0}, 0),
        ({"known_tokens": 10**6}, 0),
        ({"n": 8}, 8),
        ({"n": 11, "full": 22}, 11),
        ({"n": 12, "full": 12}, 0),
    ],
)
def test_how_many_move(changes: dict, n: int) -> None:
    plan = decided(view(**changes))
    assert len(plan.op_ids) * changes.get("n", 1) == n
    assert bool(plan.source) == bool(n)


def test_keys_and_values_go_along_where_that_is_cheaper_than_computing_them_again() -> None:
    assert decided(view(kv_bytes=1000)).kv
    assert not decided(view(kv_bytes=1_000_000)).kv


counts = st.integers(0, 200)


@given(
    full=counts,
    idle=counts,
    waiting=st.tuples(st.integers(0, 50), st.integers(0, 50)),
    lends=st.booleans(),
    room=st.integers(1, 64),
    n=st.integers(1, 8),
)
def test_moves_end_and_none_is_undone(
    full: int, idle: int, waiting: tuple[int, int], lends: bool, room: int, n: int
) -> None:
    """Whatever is left to move, with nobody ending meanwhile, comes to rest; the emptier worker
    never becomes the fuller one nor overfull."""
    full, idle = full // n * n, idle // n * n
    at = {FULL: full, IDLE: idle}
    for _ in range(full + idle + 1):
        v = view(at[FULL], at[IDLE], waiting=waiting, lends=lends, max_seqs=room, n=n)
        plan = decided(v)
        if not plan.op_ids:
            return
        assert plan.source is not None
        assert plan.target is not None
        by_id = {s.op_id: s for s in v.samples}
        assert all(by_id[op_id].worker_id == plan.source for op_id in plan.op_ids)
        assert len(set(plan.op_ids)) == len(plan.op_ids)
        moved = sum(by_id[op_id].n for op_id in plan.op_ids)
        apart = at[plan.source] - at[plan.target]
        at[plan.source] -= moved
        at[plan.target] += moved
        assert 0 <= at[plan.source] - at[plan.target] < apart
        assert at[plan.target] <= room
    pytest.fail("they never come to rest")


@given(a=st.integers(1, 10**6), b=st.integers(1, 10**6), left=st.integers(0, 1000))
def test_what_costs_more_never_moves_where_what_costs_less_does_not(
    a: int, b: int, left: int
) -> None:
    cheap, dear = sorted((a, b))
    v = view(left=left)
    moves = [
        bool(
            decided(replace(v, samples=tuple(replace(s, tokens_known=t) for s in v.samples))).op_ids
        )
        for t in (cheap, dear)
    ]
    assert moves[0] >= moves[1]


def test_it_can_be_switched_off_and_is_for_the_baselines() -> None:
    assert make("plait").moves == EvenOut()
    assert make("plait", moves="off").moves == StayAll()
    assert {make(n).moves for n in known() if n in ("sequential", "multi-lora-sync")} == {StayAll()}
    assert StayAll().decide(view(), {}, 0.0)[0] == MovesPlan()
