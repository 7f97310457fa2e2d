"""Cycles: steps inferred from an operation stream."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.profiles.cycles import Op, Stream, expected_next, infer, observe

STEP = (("sample", 0.0, 5.0), ("sample", 0.1, 6.0), ("forward_backward", 6.2, 7.0))
STEP += (("optim_step", 7.1, 7.3), ("publish", 7.4, 7.9))
PERIOD = 8.0


def ops(n, step=STEP, period=PERIOD, start=0.0):
    return [
        Op(kind=kind, t0_s=start + i * period + a, t1_s=start + i * period + b)
        for i in range(n)
        for kind, a, b in step
    ]


def stream(found):
    s = Stream()
    for op in found:
        s = observe(s, op)
    return s


def test_a_plain_loop():
    cycle = infer(stream(ops(6)))
    assert cycle.period_s == pytest.approx(PERIOD)
    assert cycle.spread_s == pytest.approx(0.0)
    by = {s.kind: s for s in cycle.stages}
    assert by["sample"].count == 2
    assert by["sample"].busy_s == pytest.approx(6.0)
    assert [s.kind for s in cycle.stages][-1] == "optim_step"
    assert by["forward_backward"].begins_s == pytest.approx(6.2 + PERIOD - 7.3)


def test_too_little_is_nothing():
    assert infer(Stream()) is None
    assert infer(stream(ops(2))) is None
    assert infer(stream([Op(kind="save", t0_s=i, t1_s=i) for i in range(9)])) is None


def test_an_update_of_four_mini_batches_is_one_step():
    step = [("sample", 0.0, 5.0)]
    for i in range(4):
        step += [("forward_backward", 5 + i, 5.5 + i), ("optim_step", 5.6 + i, 5.8 + i)]
    step += [("publish", 9.0, 9.5)]
    cycle = infer(stream(ops(6, step, 10.0)))
    assert cycle.period_s == pytest.approx(10.0)
    assert {s.kind: s.count for s in cycle.stages}["optim_step"] == 4


def test_publishing_now_and_then_is_no_step():
    found = [o for i, o in enumerate(ops(20)) if o.kind != "publish" or i // len(STEP) % 5 == 0]
    cycle = infer(stream(found))
    assert cycle.marker == "optim_step"
    assert cycle.period_s == pytest.approx(PERIOD)


def test_supervised_training_has_no_samples():
    cycle = infer(stream([o for o in ops(8) if o.kind in ("forward_backward", "optim_step")]))
    assert cycle.period_s == pytest.approx(PERIOD)


def test_sampling_ahead_of_training():
    step = [("forward_backward", 0.0, 1.0), ("optim_step", 1.0, 1.2), ("sample", 0.1, 4.0)]
    cycle = infer(stream(ops(8, step, 4.0)))
    assert cycle.period_s == pytest.approx(4.0)
    assert {s.kind for s in cycle.stages} == {"sample", "forward_backward", "optim_step"}


def test_what_comes_next():
    found = ops(6)
    s = stream(found)
    cycle = infer(s)
    assert cycle.marker == "optim_step"
    assert expected_next(cycle, s, 47.95).kind == "sample"  # trained and published: again
    s = observe(s, Op(kind="sample", t0_s=48.0, t1_s=53.0))
    s = observe(s, Op(kind="sample", t0_s=48.1, t1_s=54.0))
    after = expected_next(cycle, s, 50.0)
    assert after.kind == "forward_backward"
    assert after.at_s == pytest.approx(54.2)
    assert expected_next(cycle, s, 60.0).at_s == 60.0


def test_a_kind_that_was_left_out_this_time_is_not_waited_for():
    s = stream(ops(6)[:-1])  # without the last publication
    cycle = infer(s)
    s = observe(s, Op(kind="sample", t0_s=48.0, t1_s=53.0))
    assert expected_next(cycle, s, 49.0).kind == "sample"
    assert expected_next(cycle, s, 49.0).at_s >= 49.0


def test_one_that_ends_before_it_begins_is_ignored():
    assert observe(Stream(), Op(kind="sample", t0_s=2.0, t1_s=1.0)) == Stream()
    assert observe(Stream(), Op(kind="sample", t0_s=0.0, t1_s=float("nan"))) == Stream()


@given(st.integers(0, 2**32), st.floats(0.5, 100.0))
@settings(max_examples=50, deadline=None)
def test_lost_doubled_late_and_shuffled_operations_do_not_shift_the_period(seed, period):
    draw = Random(seed)
    scale = period / PERIOD
    found = [
        Op(
            kind=o.kind,
            t0_s=o.t0_s * scale + (jitter := draw.uniform(0, 0.05) * period),
            t1_s=o.t1_s * scale + jitter,
        )
        for o in ops(20)
        if draw.random() > 0.05
    ]
    found += [o for o in found if draw.random() < 0.05]
    shuffled = draw.sample(found, len(found))
    cycle = infer(stream(shuffled))
    assert cycle.period_s == pytest.approx(period, rel=0.1)
    assert cycle == infer(stream(sorted(found, key=lambda o: o.t0_s)))


@given(
    st.lists(
        st.builds(
            Op,
            kind=st.sampled_from(["sample", "optim_step", "publish", "forward_backward", "save"]),
            t0_s=st.floats(0, 100),
            t1_s=st.floats(0, 100),
        ),
        max_size=60,
    ),
    st.floats(0, 200),
)
def test_any_stream_has_an_answer(found, now_s):
    s = stream(found)
    cycle = infer(s)
    if cycle is not None:
        assert cycle.period_s > 0
        assert expected_next(cycle, s, now_s).at_s >= now_s
