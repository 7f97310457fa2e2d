"""Prior: a run's graph before its first step."""

import pytest

from plait.core.errors import ConfigError
from plait.core.ids import WorkerId
from plait.core.substages import Kind
from plait.profiles.cutting import Part
from plait.profiles.graph import StepSeen, expected, update
from plait.profiles.prior import Limits, estimate

W = [WorkerId("a"), WorkerId("b")]


class Flat:
    """A decode step 10 ms whatever its rows, 1 ms for 1000 other tokens."""

    kv_bytes_per_token = 100

    def decode_s(self, n_rows, context_tokens, n_adapters=0):
        return 0.01

    def prefill_s(self, n_tokens, context_tokens=0, n_adapters=0):
        return n_tokens / 1e6

    def train_s(self, n_tokens, n_samples):
        return n_tokens / 1e6

    def reference_s(self, n_tokens):
        return n_tokens / 1e6


def limits(**over):
    usual = {"n_samples": 512, "prompt_tokens": 100, "max_tokens": 1000, "mean_tokens": 500}
    return Limits(**{**usual, **over})


def test_evenly_spread_lengths_by_hand():
    graph = estimate(limits(), Flat(), rollout=W, train=W[:1])
    parts = expected(graph.rollout[W[0]])
    # 256 rows fall off linearly over 1000 steps: below 128 after 500.
    assert [p.kind for p in parts] == [Kind.PREFILL, Kind.BATCH, Kind.DECODE]
    assert parts[0].work_s == pytest.approx(256 * 100 / 1e6)
    assert parts[1].work_s == pytest.approx(5.0, rel=0.04)
    assert parts[1].work_s + parts[2].work_s == pytest.approx(10.0)
    (train,) = expected(graph.after[W[0]])
    assert train.kind is Kind.TRAIN
    assert train.work_s == pytest.approx(512 * 600 / 1e6)


def test_a_certain_length_has_no_tail():
    graph = estimate(limits(mean_tokens=1000), Flat(), rollout=W, train=W)
    assert [p.kind for p in expected(graph.rollout[W[1]])] == [Kind.PREFILL, Kind.BATCH]


def test_turns_with_a_blocked_tool_a_judge_and_a_reference():
    graph = estimate(
        limits(
            n_samples=64,
            turns=(0.5, 0.5),
            tool_s=3.0,
            blocked=True,
            result_tokens=50,
            reward_s=1.0,
            reference=True,
        ),
        Flat(),
        rollout=W[:1],
        train=W[:1],
    )
    parts = expected(graph.rollout[W[0]])
    tool = [i for i, p in enumerate(parts) if p.kind is Kind.TOOL]
    assert len(tool) == 1
    assert parts[tool[0]].work_s == pytest.approx(3.0)
    assert not parts[tool[0]].beside
    assert [p.kind for p in expected(graph.after[W[0]])] == [
        Kind.REWARD,
        Kind.REFERENCE,
        Kind.TRAIN,
    ]


def test_a_light_tool_is_beside():
    graph = estimate(
        limits(n_samples=64, turns=(0.0, 1.0), tool_s=1.0), Flat(), rollout=W[:1], train=W[:1]
    )
    tools = [p for p in expected(graph.rollout[W[0]]) if p.kind is Kind.TOOL]
    assert [p.beside for p in tools] == [True]


def test_the_first_real_step_replaces_it():
    graph = estimate(limits(), Flat(), rollout=W, train=W)
    seen = [Part(kind=Kind.DECODE, work_s=1.0)]
    graph = update(graph, StepSeen(rollout={W[0]: seen}))
    assert list(expected(graph.rollout[W[0]])) == seen
    assert not graph.after


@pytest.mark.parametrize(
    ("over", "why"),
    [
        ({"n_samples": 0}, "positive limits"),
        ({"mean_tokens": 0}, "mean_tokens"),
        ({"mean_tokens": 2000}, "mean_tokens"),
        ({"turns": (0.5,)}, "add up to 1"),
        ({"turns": ()}, "add up to 1"),
    ],
)
def test_limits_that_make_no_sense(over, why):
    with pytest.raises(ConfigError, match=why):
        estimate(limits(**over), Flat(), rollout=W, train=W)


def test_no_workers():
    with pytest.raises(ConfigError, match="workers"):
        estimate(limits(), Flat(), rollout=[], train=W)
