"""Sequences: the shift, the mask and what stands beside each token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.algos.datums import Segment, Trajectory, datum, with_reference
from plait.core.errors import RequestError

TWO_TURNS = Trajectory(
    prompt=(1, 2),
    segments=(
        Segment(tokens=(3, 4), logprobs=(-0.3, -0.4)),
        Segment(tokens=(5,)),
        Segment(tokens=(6,), logprobs=(-0.6,)),
        Segment(tokens=(7, 8)),
    ),
)


def test_only_sampled_tokens_are_scored_each_from_the_position_before() -> None:
    d = datum(TWO_TURNS, advantage=2.0, weight=0.5)
    assert d.input_tokens == (1, 2, 3, 4, 5)
    assert d.target_tokens == (2, 3, 4, 5, 6)
    assert d.mask == (False, True, True, False, True)
    assert d.inputs["logprobs"] == (0.0, -0.3, -0.4, 0.0, -0.6)
    assert d.inputs["advantages"] == (0.0, 2.0, 2.0, 0.0, 2.0)
    assert d.inputs["weights"] == (0.0, 0.5, 0.5, 0.0, 0.5)


def test_counts() -> None:
    assert (TWO_TURNS.n_sampled, TWO_TURNS.n_tokens) == (3, 8)


def test_reference_goes_to_the_scored_positions() -> None:
    (d,) = with_reference([datum(TWO_TURNS, advantage=1.0, weight=1.0)], [(-1.0, -2.0, -3.0)])
    assert d.inputs["ref_logprobs"] == (0.0, -1.0, -2.0, 0.0, -3.0)
    assert d.inputs["logprobs"] == (0.0, -0.3, -0.4, 0.0, -0.6)


def test_reference_of_another_length_is_refused() -> None:
    data = [datum(TWO_TURNS, advantage=1.0, weight=1.0)]
    with pytest.raises(RequestError, match="3 scored tokens came with 2"):
        with_reference(data, [(-1.0, -2.0)])
    with pytest.raises(RequestError, match="1 sequences came with 0"):
        with_reference(data, [])


@pytest.mark.parametrize(
    ("trajectory", "why"),
    [
        (Trajectory(prompt=(), segments=TWO_TURNS.segments), "empty prompt"),
        (Trajectory(prompt=(1,), segments=(Segment(tokens=(2,)),)), "no sampled token"),
        (Trajectory(prompt=(1,), segments=(Segment(tokens=(2,), logprobs=()),)), "0 log-probs"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(trajectory: Trajectory, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        datum(trajectory, advantage=1.0, weight=1.0)


segments = st.lists(
    st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.booleans()), max_size=6
)


@given(prompt=st.lists(st.integers(0, 9), min_size=1, max_size=4), parts=segments)
def test_the_scored_targets_are_the_sampled_tokens_in_order(prompt, parts) -> None:
    trajectory = Trajectory(
        prompt=tuple(prompt),
        segments=tuple(
            Segment(tokens=tuple(t), logprobs=tuple(-float(x) for x in t) if drawn else None)
            for t, drawn in parts
        ),
    )
    sampled = [token for t, drawn in parts if drawn for token in t]
    if not sampled:
        return
    d = datum(trajectory, advantage=1.0, weight=1.0)
    scored = [i for i, m in enumerate(d.mask) if m]
    assert [d.target_tokens[i] for i in scored] == sampled
    assert [d.inputs["logprobs"][i] for i in scored] == [-float(t) for t in sampled]
    assert d.input_tokens[1:] == d.target_tokens[:-1]
    assert d.mask[-1]
    lengths = {len(d.input_tokens), len(d.target_tokens), len(d.mask), *map(len, d.inputs.values())}
    assert len(lengths) == 1
