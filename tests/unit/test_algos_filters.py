"""Groups without signal are counted, and a step without any is a value."""

from plait.algos.filters import signal


def test_groups_are_sorted_by_what_they_say() -> None:
    found = signal(((0.5, -0.5), (0.0, 0.0), (None, None), (None, 0.0)))
    assert found.with_signal == (0,)
    assert found.zero_signal == (1, 3)
    assert found.unscored == (2,)
    assert not found.none


def test_no_signal_at_all_is_a_value() -> None:
    assert signal(((0.0, 0.0), (None,))).none
