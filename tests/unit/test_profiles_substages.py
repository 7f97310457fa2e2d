"""Sub-stages: the graph as the co-location policy is told of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.colocation import ColocationView, WorkerFacts
from plait.core.ids import RunId, WorkerId
from plait.core.substages import Kind
from plait.profiles.cutting import Part
from plait.profiles.graph import Graph, StepSeen, update
from plait.profiles.substages import Progress, substages, where

A, B = WorkerId("a"), WorkerId("b")
RUN = RunId("run")


def part(kind, work_s=1.0, **over):
    return Part(kind=kind, work_s=work_s, **over)


GRAPH = update(
    Graph(),
    StepSeen(
        rollout={
            A: [
                part(Kind.PREFILL, 0.5, tokens=2000, memory_bytes=100, least_bytes=10),
                part(Kind.TOOL, 2.0, beside=True),
                part(Kind.DECODE, 3.0, tokens=32, rows=32, context=500),
                part(Kind.DECODE, 1.0),
            ],
            B: [part(Kind.DECODE, 2.0)],
        },
        after={
            A: [part(Kind.REFERENCE), part(Kind.TRAIN, 2.0)],
            B: [part(Kind.REFERENCE), part(Kind.TRAIN, 2.0)],
        },
    ),
)


def told(**over):
    return {s.key: s for s in substages(GRAPH, run_id=RUN, step=7, **over)}


def test_chains_barrier_and_training():
    by = told()
    assert by["run/7/a/0"].after == ()
    assert by["run/7/a/1"].after == by["run/7/a/2"].after == ("run/7/a/0",)
    assert set(by["run/7/a/3"].after) == {"run/7/a/1", "run/7/a/2"}
    assert by["run/7/b/0"].after == ()
    for worker in "ab":
        assert set(by[f"run/7/{worker}/after-0"].after) == {"run/7/a/3", "run/7/b/0"}
        assert set(by[f"run/7/{worker}/after-1"].after) == {"run/7/a/after-0", "run/7/b/after-0"}


def test_memory_has_the_weights_in_it():
    by = told(weight_bytes=1000, train_bytes=500)
    assert (by["run/7/a/0"].memory_bytes, by["run/7/a/0"].least_bytes) == (1100, 1010)
    assert by["run/7/a/1"].memory_bytes == 0
    assert by["run/7/a/after-1"].memory_bytes == 1500
    assert (by["run/7/a/2"].tokens, by["run/7/a/2"].context, by["run/7/a/2"].n_samples) == (
        32,
        500,
        32,
    )


def test_what_has_ended_is_left_out():
    by = told(rollout={A: Progress(ended=2, done_s=1.0), B: Progress(ended=1)})
    assert by["run/7/a/2"].work_s == 2.0
    assert by["run/7/a/2"].after == ()
    assert "run/7/b/0" not in by
    assert set(by["run/7/a/after-0"].after) == {"run/7/a/3"}
    ended = told(
        rollout={A: Progress(ended=4), B: Progress(ended=1)},
        after={A: Progress(ended=1), B: Progress(ended=1, done_s=0.5)},
    )
    assert [(s.kind, s.work_s, s.after) for s in ended.values()] == [
        (Kind.TRAIN, 2.0, ()),
        (Kind.TRAIN, 1.5, ()),
    ]


def test_where_a_replica_stands():
    chain = [part(Kind.PREFILL), part(Kind.DECODE), part(Kind.TOOL), part(Kind.DECODE)]
    assert where(chain, []) == Progress()
    assert where(chain, [part(Kind.PREFILL, 0.2)]) == Progress(ended=0, done_s=0.2)
    seen = [part(Kind.PREFILL), part(Kind.DECODE), part(Kind.TOOL), part(Kind.DECODE, 0.3)]
    assert where(chain, seen) == Progress(ended=3, done_s=0.3)
    unexpected = [part(Kind.BATCH), part(Kind.DECODE, 0.4)]
    assert where(chain, unexpected) == Progress(ended=1, done_s=0.4)


parts = st.builds(
    Part,
    kind=st.sampled_from([Kind.DECODE, Kind.BATCH, Kind.PREFILL, Kind.TOOL]),
    work_s=st.floats(0.01, 10),
    beside=st.booleans(),
    memory_bytes=st.floats(0, 1e9),
    least_bytes=st.floats(0, 1e9),
)
chains = st.dictionaries(st.sampled_from([A, B]), st.lists(parts, max_size=5))


@given(chains, chains, st.integers(0, 6))
def test_a_view_that_can_be_worked_off(rollout, after, ended):
    graph = update(Graph(), StepSeen(rollout=rollout, after=after))
    progress = dict.fromkeys(rollout, Progress(ended=ended))
    left = substages(graph, run_id=RUN, step=1, weight_bytes=10, rollout=progress)
    keys = [s.key for s in left]
    assert len(keys) == len(set(keys))
    assert all(s.least_bytes <= s.memory_bytes for s in left)
    done: set[str] = set()
    waiting = list(left)
    while waiting:
        ready = [s for s in waiting if set(s.after) <= done]
        assert ready  # neither a cycle nor a name that nobody has
        done |= {s.key for s in ready}
        waiting = [s for s in waiting if s.key not in done]
    facts = WorkerFacts(worker_id=A, memory_bytes=1)
    assert ColocationView(workers=(facts,), substages=left).substages == left


def test_progress_beyond_the_end_is_the_end():
    assert told(rollout={A: Progress(ended=9), B: Progress(ended=9)})["run/7/a/after-0"].after == ()
    assert where([], [part(Kind.DECODE)]) == Progress()
    assert told(rollout={B: Progress(done_s=99.0)})["run/7/b/0"].work_s == pytest.approx(0.0)
