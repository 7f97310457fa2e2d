"""Graph: recent steps laid over each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.ids import WorkerId
from plait.core.substages import Kind
from plait.profiles.cutting import Part
from plait.profiles.graph import Graph, StepSeen, expected, step_s, update

W = WorkerId("w0")


def part(kind, work_s, **over):
    return Part(kind=kind, work_s=work_s, **over)


def grown(*chains):
    graph = Graph()
    for chain in chains:
        graph = update(graph, StepSeen(rollout={W: chain}))
    return graph


def kinds(graph):
    return [p.kind for p in expected(graph.rollout[W])]


def test_after_one_step_the_graph_is_that_step():
    seen = [part(Kind.PREFILL, 1.0, tokens=4096), part(Kind.DECODE, 5.0, rows=32)]
    assert list(expected(grown(seen).rollout[W])) == seen


def test_recent_steps_count_more():
    graph = grown([part(Kind.DECODE, 1.0)], [part(Kind.DECODE, 2.0)])
    assert expected(graph.rollout[W])[0].work_s == pytest.approx((0.7 * 1 + 2) / 1.7)


def test_a_drifting_length_is_followed():
    graph = grown(*[[part(Kind.DECODE, 1.0 + 0.1 * i)] for i in range(30)])
    assert expected(graph.rollout[W])[0].work_s == pytest.approx(3.9 - 0.1 * 0.7 / 0.3, rel=0.01)


def test_a_part_of_one_step_is_soon_left_out_but_its_work_is_kept():
    usual = [part(Kind.BATCH, 2.0), part(Kind.DECODE, 2.0)]
    odd = [part(Kind.BATCH, 2.0), part(Kind.PREFILL, 1.0), part(Kind.DECODE, 2.0)]
    graph = grown(usual, usual, usual, odd, usual)
    assert kinds(graph) == [Kind.BATCH, Kind.DECODE]
    weight = sum(0.7**i for i in range(5))
    assert sum(p.work_s for p in expected(graph.rollout[W])) == pytest.approx(4 + 0.7 / weight)


def test_a_lasting_change_is_taken_over():
    before = [part(Kind.DECODE, 2.0)]
    after = [part(Kind.BATCH, 1.0), part(Kind.TOOL, 3.0), part(Kind.DECODE, 2.0)]
    assert kinds(grown(before, before, before, after)) == [Kind.DECODE]
    assert kinds(grown(before, before, before, *[after] * 3)) == [
        Kind.BATCH,
        Kind.TOOL,
        Kind.DECODE,
    ]


def test_a_replica_that_is_gone_is_forgotten():
    graph = update(grown([part(Kind.DECODE, 1.0)]), StepSeen(rollout={WorkerId("w1"): []}))
    assert list(graph.rollout) == ["w1"]


def test_the_step_is_its_longest_replica_and_what_follows():
    seen = StepSeen(
        rollout={
            W: [part(Kind.TOOL, 9.0, beside=True), part(Kind.DECODE, 3.0)],
            WorkerId("w1"): [part(Kind.DECODE, 4.0)],
        },
        after={W: [part(Kind.TRAIN, 2.0)]},
    )
    assert step_s(update(Graph(), seen)) == 6.0


parts = st.builds(
    Part,
    kind=st.sampled_from([Kind.DECODE, Kind.BATCH, Kind.PREFILL, Kind.TOOL]),
    work_s=st.floats(0.01, 10),
    rows=st.floats(1, 64),
    memory_bytes=st.floats(0, 1e9),
)


@given(st.lists(st.lists(parts, min_size=1, max_size=6), min_size=1, max_size=8))
def test_the_work_is_the_fading_mean_of_recent_steps(chains):
    graph = grown(*chains)
    shown = expected(graph.rollout[W])
    mean = weight = 0.0
    for chain in chains:
        mean = 0.7 * mean + sum(p.work_s for p in chain if p.kind is not Kind.TOOL)
        weight = 0.7 * weight + 1.0
    if any(p.kind is not Kind.TOOL for p in shown):
        work = sum(p.work_s for p in shown if p.kind is not Kind.TOOL)
        assert work == pytest.approx(mean / weight)


@given(st.lists(parts, min_size=1, max_size=6), st.integers(1, 6))
def test_equal_steps_give_that_step(chain, n):
    shown = expected(grown(*[chain] * n).rollout[W])
    assert [p.kind for p in shown] == [p.kind for p in chain]
    assert [p.work_s for p in shown] == pytest.approx([p.work_s for p in chain])
