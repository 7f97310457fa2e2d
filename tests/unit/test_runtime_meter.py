"""Meter: slices become spans."""

from dataclasses import replace

from plait.core.ids import RunId
from plait.runtime.messages import Span
from plait.runtime.meter import SPAN_S, Meter

A, B = RunId("a"), RunId("b")


def slice_(t0: float, t1: float, runs: dict[RunId, int], threads: int = 1) -> Span:
    return Span(
        kind="rollout",
        t0=t0,
        t1=t1,
        threads=threads,
        tokens=sum(runs.values()),
        steps=1,
        tokens_by_run=runs,
        kv_block_s_by_run=dict.fromkeys(runs, 2.0 * (t1 - t0)),
    )


def test_consecutive_slices_of_the_same_runs_become_one_span() -> None:
    meter = Meter()
    meter.add(slice_(0.0, 0.01, {A: 3, B: 1}))
    meter.add(slice_(0.01, 0.02, {A: 2, B: 1}))
    meter.close()
    (span,) = meter.drain()
    assert (span.t0, span.t1, span.tokens, span.steps) == (0.0, 0.02, 7, 2)
    assert span.tokens_by_run == {A: 5, B: 2}
    assert span.kv_block_s_by_run[A] == 0.04


def test_another_set_of_runs_or_a_gap_starts_a_new_span() -> None:
    meter = Meter()
    meter.add(slice_(0.0, 0.01, {A: 1}))
    meter.add(slice_(0.01, 0.02, {A: 1, B: 1}))
    meter.add(slice_(0.1, 0.11, {A: 1, B: 1}))
    meter.close()
    assert len(meter.drain()) == 3


def test_a_spans_threads_are_the_mean_over_its_time() -> None:
    meter = Meter()
    meter.add(slice_(0.0, 0.01, {A: 1}, threads=1))
    meter.add(slice_(0.01, 0.04, {A: 1}, threads=2))
    meter.close()
    (span,) = meter.drain()
    assert span.threads == 1.75


def test_a_span_is_cut_at_its_length_and_nothing_is_handed_out_twice() -> None:
    meter = Meter()
    meter.add(slice_(0.0, SPAN_S, {A: 1}))
    assert len(meter.drain()) == 1
    assert meter.drain() == ()


def test_a_span_names_every_run_that_lacked_blocks_in_one_of_its_slices() -> None:
    meter = Meter()
    meter.add(replace(slice_(0.0, 0.01, {A: 1}), short_of_blocks=frozenset({B})))
    meter.add(slice_(0.01, 0.02, {A: 1}))
    meter.close()
    (span,) = meter.drain()
    assert span.short_of_blocks == {B}
