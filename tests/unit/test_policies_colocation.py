"""Co-location: the paper's example, and the rules in whole plays of random graphs."""

import pytest
from colocation_play import play, substage, view
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import RequestError
from plait.core.substages import Kind
from plait.policies.colocation import AGE, Greedy, LookAhead


def fig_11():
    """A rolls out while B trains; then A trains, and B rolls out with a tool call in the middle.

    With all the memory that A's rollout wants beside B's training, B's rollout finds none next to
    it; with its least, A's training later fits beside B.
    """
    return view(
        [
            substage("a/roll", Kind.BATCH, 9.0, wants=60, least=30),
            substage("a/train", Kind.TRAIN, 6.0, wants=60, after=["a/roll"]),
            substage("b/train", Kind.TRAIN, 4.0, wants=40),
            substage("b/roll", Kind.DECODE, 3.0, wants=40, after=["b/train"]),
            substage("b/tool", Kind.TOOL, 6.0, after=["b/roll"]),
            substage("b/roll2", Kind.DECODE, 5.0, wants=40, after=["b/tool"]),
        ]
    )


def test_looking_ahead_beats_greedy_on_the_paper_s_example():
    greedy, _ = play(Greedy(), fig_11())
    ahead, _ = play(LookAhead(), fig_11())
    assert max(ahead.values()) < max(greedy.values())
    # B's rollout comes first, so that its tool call lies beside A's work.
    assert ahead["b/roll"] < greedy["b/roll"]


@pytest.mark.parametrize("policy", [Greedy(), LookAhead()])
def test_complements_share_a_worker(policy):
    start = view([substage("a/d", Kind.DECODE, 5.0), substage("b/t", Kind.TRAIN, 5.0)])
    ends, _ = play(policy, start)
    assert max(ends.values()) < 8.0  # one after the other: 10


@pytest.mark.parametrize("policy", [Greedy(), LookAhead()])
def test_two_that_do_not_fit_together_run_one_after_the_other(policy):
    start = view(
        [
            substage("a/t", Kind.TRAIN, 5.0, wants=60),
            substage("b/t", Kind.TRAIN, 5.0, wants=60),
        ]
    )
    ends, _ = play(policy, start)
    assert sorted(ends.values()) == [5.0, 10.0]


def test_replicas_get_the_same_answer():
    workers = ("w0", "w1", "w2", "w3")
    start = view(
        [
            substage(f"{run}/{w}", kind, 5.0, worker=w)
            for run, kind in (("a", Kind.DECODE), ("b", Kind.TRAIN), ("c", Kind.TRAIN))
            for w in workers
        ],
        workers,
    )
    plan, _ = LookAhead().decide(start, {}, 0.0)
    by_worker = {}
    for share in plan.shares:
        run, worker = share.key.split("/")
        by_worker.setdefault(worker, set()).add((run, share.compute, share.memory_bytes))
    assert len(by_worker) == 4
    assert len({frozenset(what) for what in by_worker.values()}) == 1


def test_a_longer_chain_goes_first():
    start = view(
        [
            substage("a/t", Kind.TRAIN, 2.0, wants=60),
            substage("b/t", Kind.TRAIN, 2.0, wants=60),
            substage("b/tool", Kind.TOOL, 20.0, after=["b/t"]),
        ]
    )
    ends, _ = play(LookAhead(), start)
    assert ends["b/tool"] == 22.0


def test_what_was_passed_over_goes_first():
    long = [substage(f"long/{i}", Kind.TRAIN, 1.0, wants=60) for i in range(1)]
    long += [substage("long/tool", Kind.TOOL, 50.0, after=["long/0"])]
    start = view([*long, substage("short/t", Kind.TRAIN, 1.0, wants=60)])
    assert LookAhead().decide(start, {}, 0.0)[0].shares[0].key == "long/0"
    overdue = {"passed": {"short/t": AGE}}
    assert LookAhead().decide(start, overdue, 0.0)[0].shares[0].key == "short/t"


def test_being_passed_over_is_counted():
    start = view(
        [
            substage("a/t", Kind.TRAIN, 2.0, wants=60),
            substage("b/t", Kind.TRAIN, 2.0, wants=60),
            substage("b/tool", Kind.TOOL, 20.0, after=["b/t"]),
        ]
    )
    plan, state = LookAhead().decide(start, {}, 0.0)
    assert [w.run_id for w in plan.waits] == ["a"]
    assert "waits on w0 for b" in plan.waits[0].detail
    assert state == {"passed": {"a/t": 1}}


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ([substage("a/t", Kind.TRAIN, 1.0, wants=200)], "needs 200 bytes at least"),
        ([substage("a/t", Kind.TRAIN, 1.0, worker="w9")], "worker w9 is not among"),
        (
            [
                substage("a/1", Kind.TRAIN, 1.0, after=["a/2"]),
                substage("a/2", Kind.TRAIN, 1.0, after=["a/1"]),
            ],
            "waits for itself",
        ),
    ],
)
def test_what_can_never_run_is_refused(graph, message):
    with pytest.raises(RequestError, match=message):
        LookAhead().decide(view(graph), {}, 0.0)


ON_DEVICE = [k for k in Kind if k.on_device]


@st.composite
def graphs(draw):
    """Up to four runs of a few sub-stages each on one to three workers."""
    workers = [f"w{i}" for i in range(draw(st.integers(1, 3)))]
    found = []
    for run in range(draw(st.integers(1, 4))):
        last = []
        for stage in range(draw(st.integers(1, 4))):
            kind = draw(st.sampled_from([*ON_DEVICE, Kind.TOOL]))
            wants = draw(st.integers(0, 100))
            made = [
                substage(
                    f"r{run}/{stage}/{w}",
                    kind,
                    draw(st.floats(0.1, 9.0)),
                    after=last,
                    wants=wants,
                    least=draw(st.integers(0, wants)),
                    worker=w,
                    tokens=draw(st.integers(1, 5000)),
                )
                for w in workers
            ]
            found += made
            last = [s.key for s in made]
    return view(found, workers)


@settings(max_examples=60, deadline=None)
@given(graphs(), st.sampled_from([Greedy(), LookAhead(), LookAhead(width=1, depth=1)]))
def test_every_graph_is_played_to_its_end_within_the_rules(start, policy):
    ends, _ = play(policy, start)
    assert set(ends) == {s.key for s in start.substages}


@settings(max_examples=25, deadline=None)
@given(graphs())
def test_the_same_view_gives_the_same_plan(start):
    assert LookAhead().decide(start, {}, 0.0) == LookAhead().decide(start, {}, 0.0)
