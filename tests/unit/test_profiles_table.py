"""Table: measured slowdowns between and beyond what was measured."""

import json
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import ConfigError
from plait.core.ids import RunId, WorkerId
from plait.core.substages import Kind, Substage
from plait.profiles.cutting import bucket
from plait.profiles.slowdown import Analytic
from plait.profiles.table import Point, Table, load, save


def substage(kind, tokens):
    return Substage(
        key="k", run_id=RunId("a"), worker=WorkerId("w"), kind=kind, work_s=1.0, tokens=tokens
    )


def point(own, own_tokens, compute, slowdown, beside=None, beside_tokens=0):
    return Point(
        own=own,
        own_tokens=own_tokens,
        compute=compute,
        slowdown=slowdown,
        beside=beside,
        beside_tokens=beside_tokens,
    )


POINTS = [
    point("rollout", 8, 0.5, 1.2),
    point("rollout", 64, 0.5, 1.6),
    point("train", 512, 0.25, 4.0),
    point("train", 512, 0.5, 2.0),
    point("rollout", 8, 0.5, 1.5, "train", 512),
    point("rollout", 64, 0.5, 2.5, "train", 512),
    point("train", 512, 0.5, 2.2, "rollout", 8),
    point("train", 512, 0.5, 2.8, "rollout", 32),
]
table = Table(POINTS)
SMALL, LARGE = substage(Kind.DECODE, 8), substage(Kind.DECODE, 64)
TRAIN = substage(Kind.TRAIN, 512)


def test_what_was_measured_is_given_back():
    assert table(SMALL, None, 0.5, 1.0) == 1.2
    assert table(LARGE, TRAIN, 0.5, 1.0) == 2.5
    assert table(TRAIN, SMALL, 0.5, 1.0) == 2.2
    assert table(TRAIN, None, 1.0, 1.0) == 1.0


def test_between_shares_a_power_law():
    assert table(TRAIN, None, sqrt(0.25 * 0.5), 1.0) == pytest.approx(sqrt(8.0))
    assert table(TRAIN, None, 0.75, 1.0) == pytest.approx(1 / 0.75)


def test_between_tokens_straight_in_the_logarithm():
    middle = substage(Kind.DECODE, 16)
    assert table(middle, None, 0.5, 1.0) == pytest.approx(1.2 + 0.4 / 3)
    assert table(TRAIN, middle, 0.5, 1.0) == pytest.approx(2.5)


def test_beyond_the_shares_the_analytic_shape_goes_on():
    slow = Analytic()
    ratio = slow(TRAIN, None, 0.1, 1.0) / slow(TRAIN, None, 0.25, 1.0)
    assert table(TRAIN, None, 0.1, 1.0) == pytest.approx(4.0 * ratio)


def test_beyond_the_tokens_the_nearest_of_the_bucket_else_the_model():
    slow = Analytic()
    assert table(substage(Kind.DECODE, 127), None, 0.5, 1.0) == 1.6
    far = substage(Kind.BATCH, 512)
    assert table(far, None, 0.5, 1.0) == slow(far, None, 0.5, 1.0)
    assert table(SMALL, far, 0.5, 1.0) == slow(SMALL, far, 0.5, 1.0)
    reference = substage(Kind.REFERENCE, 512)
    assert table(reference, SMALL, 0.5, 1.0) == slow(reference, SMALL, 0.5, 1.0)


def test_memory_costs_what_the_model_says_and_the_rest_nothing():
    assert table(SMALL, None, 0.5, 0.5) == pytest.approx(1.2 * Analytic()(SMALL, None, 1.0, 0.5))
    assert table(substage(Kind.TOOL, 0), TRAIN, 0.1, 0.1) == 1.0
    assert table(SMALL, substage(Kind.TOOL, 0), 0.5, 1.0) == 1.2


def test_a_noisy_measurement_is_made_monotone():
    noisy = Table([point("train", 1, 0.25, 2.0), point("train", 1, 0.5, 3.0)])
    one = substage(Kind.TRAIN, 1)
    assert noisy(one, None, 0.25, 1.0) == noisy(one, None, 0.5, 1.0) == 2.5


numbers = st.floats(0.5, 6.0)
points = st.builds(
    point,
    st.sampled_from(["rollout", "train"]),
    st.sampled_from([8, 64, 512]),
    st.sampled_from([0.25, 0.5, 0.75, 1.0]),
    numbers,
    st.none() | st.sampled_from(["rollout", "train"]),
    st.sampled_from([8, 512]),
)
kinds = st.sampled_from([Kind.DECODE, Kind.TRAIN, Kind.REFERENCE, Kind.TOOL, Kind.MOVE])


@given(
    st.lists(points, max_size=30),
    kinds,
    st.integers(0, 3000),
    st.none() | kinds,
    st.integers(0, 3000),
    st.floats(0.05, 1.0),
    st.floats(0.05, 1.0),
)
def test_never_faster_and_monotone_in_the_share(found, kind, n, other, m, a, b):
    slow = Table(found)
    own = substage(bucket(n) if kind is Kind.DECODE else kind, n)
    beside = None
    if other is not None:
        beside = substage(bucket(m) if other is Kind.DECODE else other, m)
    low, high = sorted((a, b))
    assert slow(own, None, 1.0, 1.0) == 1.0
    assert slow(own, beside, low, 1.0) >= slow(own, beside, high, 1.0) - 1e-9 >= 1.0 - 2e-9
    assert slow(own, beside, 0.5, low) >= slow(own, beside, 0.5, high) - 1e-9


def test_a_file_goes_there_and_back(tmp_path):
    file = tmp_path / "slowdown.json"
    save(POINTS, file, model="tiny", cores=2)
    assert load(file) == tuple(POINTS)
    assert json.loads(file.read_text())["model"] == "tiny"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot read"),
        ("[]", "version None"),
        ('{"version": 2, "points": []}', "version 2, not 1: profile again"),
        ('{"version": 1}', "no slowdown file"),
        ('{"version": 1, "points": [{"own": "train"}]}', "no slowdown file"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, text, why):
    file = tmp_path / "slowdown.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=why) as error:
        load(file)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "wrong",
    [
        point("train", 1, 0.0, 2.0),
        point("train", 1, 1.5, 2.0),
        point("train", 1, 0.5, -1.0),
        point("train", 1, 0.5, float("nan")),
        point("train", 0, 0.5, 1.0),
        point("tool", 1, 0.5, 1.0),
        point("train", 1, 0.5, 1.0, "rollout", 0),
        point("train", 1, "half", 1.0),
    ],
)
def test_a_wrong_number_is_refused(wrong):
    with pytest.raises(ConfigError):
        Table([wrong])
