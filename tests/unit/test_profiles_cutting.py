"""Cutting: buckets, the window of ten, and tool waits."""

from hypothesis import given
from hypothesis import strategies as st

from plait.core.substages import Kind
from plait.profiles.cutting import Forward, ToolWait, boundaries, bucket, cut


def steps(*tokens, t0=0.0, took=0.1, **over):
    return [
        Forward(t0_s=t0 + i * took, t1_s=t0 + (i + 1) * took, tokens=n, rows=min(n, 64), **over)
        for i, n in enumerate(tokens)
    ]


def test_the_published_buckets():
    assert [bucket(n) for n in (0, 127, 128, 1023, 1024)] == [
        Kind.DECODE,
        Kind.DECODE,
        Kind.BATCH,
        Kind.BATCH,
        Kind.PREFILL,
    ]


def test_nine_steps_in_another_bucket_are_no_boundary_and_ten_are():
    assert boundaries(steps(*[200] * 20, *[64] * 9, *[200] * 20)) == [0]
    assert boundaries(steps(*[200] * 20, *[64] * 10, *[200] * 20)) == [0, 20, 30]
    assert len(cut(steps(*[200] * 20, *[64] * 9, *[200] * 20))) == 1


def test_fluctuation_starts_the_window_anew():
    assert boundaries(steps(*[200] * 20, *[64] * 9, 200, *[64] * 9, 200)) == [0]
    assert boundaries(steps(*[200] * 20, *[64] * 9, 200, *[64] * 10)) == [0, 30]


def test_prefill_then_batch_then_tail():
    parts = cut(steps(4096, 4096, *[256] * 30, *[8] * 40))
    assert [p.kind for p in parts] == [Kind.PREFILL, Kind.BATCH, Kind.DECODE]
    assert [round(p.work_s, 6) for p in parts] == [0.2, 3.0, 4.0]
    assert [p.tokens for p in parts] == [4096, 256, 8]


def test_several_steps_in_one_row_count_as_many():
    rows = [Forward(t0_s=0, t1_s=1, tokens=2560, steps=10)]
    rows += [Forward(t0_s=1, t1_s=2, tokens=80, steps=10)]
    assert [p.kind for p in cut(rows)] == [Kind.BATCH, Kind.DECODE]


def test_a_blocked_call_stands_between_two_parts():
    rows = steps(*[64] * 20) + steps(*[64] * 20, t0=5.0)
    parts = cut(rows, [ToolWait(t0_s=2.0, t1_s=4.5, blocked=True)])
    assert [(p.kind, p.beside) for p in parts] == [
        (Kind.DECODE, False),
        (Kind.TOOL, False),
        (Kind.DECODE, False),
    ]
    assert parts[1].work_s == 2.5  # the half second until it went on was no wait for the tool


def test_a_call_that_others_do_not_wait_for_is_beside():
    rows = steps(*[64] * 40)
    parts = cut(rows, [ToolWait(t0_s=1.0, t1_s=2.0), ToolWait(t0_s=1.5, t1_s=3.0)])
    assert [(p.kind, p.beside, p.work_s) for p in parts[:1]] == [(Kind.TOOL, True, 1.5)]
    assert parts[0].rows == 2
    assert parts[1].kind is Kind.DECODE


def test_a_call_that_ends_between_two_forward_steps_stops_nobody():
    rows = steps(*[64] * 20) + steps(*[64] * 20, t0=2.02)
    parts = cut(rows, [ToolWait(t0_s=1.0, t1_s=2.01)])
    assert [p.kind for p in parts if not p.beside] == [Kind.DECODE]


def test_the_last_ones_waiting_stop_the_replica():
    rows = steps(*[64] * 20) + steps(*[64] * 20, t0=4.0)
    parts = cut(rows, [ToolWait(t0_s=1.0, t1_s=3.9)])
    assert [p.kind for p in parts] == [Kind.DECODE, Kind.TOOL, Kind.DECODE]
    assert parts[1].work_s == 3.9 - 2.0


def test_a_pause_without_a_call_is_no_work():
    rows = steps(*[64] * 20) + steps(*[64] * 20, t0=100.0)
    (part,) = cut(rows)
    assert round(part.work_s, 6) == 4.0


def test_memory_is_the_highest_and_the_least_is_one_sequence():
    rows = [
        Forward(t0_s=0, t1_s=1, tokens=10, rows=10, kv_bytes=1000),
        Forward(t0_s=1, t1_s=2, tokens=4, rows=4, kv_bytes=800),
    ]
    (part,) = cut(rows)
    assert (part.memory_bytes, part.least_bytes, part.rows) == (1000, 200, 10)


@given(
    tokens=st.lists(st.integers(1, 3000), min_size=1, max_size=80),
    pauses=st.lists(st.tuples(st.floats(0, 8), st.floats(0, 4), st.booleans()), max_size=5),
)
def test_every_step_is_in_one_part_and_neighbours_differ(tokens, pauses):
    rows = steps(*tokens)
    waits = [ToolWait(t0_s=a, t1_s=a + b, blocked=c) for a, b, c in pauses]
    parts = cut(rows, waits)
    work = sum(p.work_s for p in parts if p.kind.rolls_out)
    assert abs(work - 0.1 * len(tokens)) < 1e-6
    total = sum(p.tokens * p.work_s / 0.1 for p in parts if p.kind.rolls_out)
    assert abs(total - sum(tokens)) < 1e-3 * sum(tokens)
    assert all(p.work_s >= 0 for p in parts)
    starts = boundaries(rows)
    assert starts == sorted(set(starts))
    assert starts[0] == 0


def test_nothing_was_rolled_out():
    assert cut([]) == ()
    assert boundaries([]) == []
