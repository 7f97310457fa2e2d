"""Slowdown: the analytic model's published points and invariants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.ids import RunId, WorkerId
from plait.core.substages import Kind, Substage
from plait.profiles.slowdown import Analytic


def substage(kind, tokens=64):
    return Substage(
        key="k", run_id=RunId("a"), worker=WorkerId("w"), kind=kind, work_s=1.0, tokens=tokens
    )


TRAIN, SMALL, LARGE = (
    substage(Kind.TRAIN, 8192),
    substage(Kind.DECODE, 32),
    substage(Kind.BATCH, 512),
)
slow = Analytic()


def test_the_published_points():
    assert slow(TRAIN, None, 0.25, 1.0) == pytest.approx(2.7, rel=0.01)
    assert slow(LARGE, None, 0.25, 1.0) == pytest.approx(2.7, rel=0.01)
    assert slow(SMALL, None, 0.25, 1.0) == 1.0
    assert slow(TRAIN, TRAIN, 0.5, 1.0) == pytest.approx(2.19, rel=0.01)
    assert slow(SMALL, None, 1.0, 0.5) == pytest.approx(1.43, rel=0.01)


def test_complements_fit_better_than_equals():
    assert slow(TRAIN, SMALL, 0.75, 1.0) < slow(TRAIN, LARGE, 0.75, 1.0)
    assert slow(SMALL, TRAIN, 0.25, 1.0) < slow(SMALL, SMALL, 0.5, 1.0)


def test_what_needs_no_device_is_not_slowed():
    assert slow(substage(Kind.TOOL), TRAIN, 0.1, 0.1) == 1.0


kinds = st.sampled_from(list(Kind))
shares = st.floats(0.05, 1.0)


@given(own=kinds, beside=st.none() | kinds, tokens=st.integers(1, 5000), a=shares, b=shares)
def test_never_faster_and_monotone(own, beside, tokens, a, b):
    mine = substage(own, tokens)
    other = None if beside is None else substage(beside, tokens)
    low, high = sorted((a, b))
    assert slow(mine, None, 1.0, 1.0) == 1.0
    assert slow(mine, other, low, 1.0) >= slow(mine, other, high, 1.0) >= 1.0
    assert slow(mine, other, 0.5, low) >= slow(mine, other, 0.5, high) >= 1.0
    assert slow(mine, other, a, b) >= slow(mine, None, a, b)
