"""Query rows: every own position in one row, few places of padding."""

from hypothesis import given
from hypothesis import strategies as st

from plait.engines.torch.train.rows import Row, query_rows


def test_without_a_shared_prefix_a_sequence_is_a_row() -> None:
    assert query_rows([(0, 9), (0, 9)]) == ([Row(0, 0, 9), Row(1, 0, 9)], 9)


def test_a_shared_prefix_is_cut_to_the_width_of_what_follows_it() -> None:
    rows, width = query_rows([(0, 96), *[(64, 96)] * 7])
    assert width == 32
    assert rows[:3] == [Row(0, 0, 32), Row(0, 32, 64), Row(0, 64, 96)]
    assert len(rows) == 10


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=12))
def test_each_position_has_one_place(cut: list[tuple[int, int]]) -> None:
    own = [(start, start + n) for start, n in [*cut, (0, 1)]]
    rows, width = query_rows(own)
    assert all(0 < r.end - r.start <= width for r in rows)
    found = sorted((r.sequence, at) for r in rows for at in range(r.start, r.end))
    assert found == [(i, at) for i, (start, end) in enumerate(own) for at in range(start, end)]
    longest = max(end - start for start, end in own)
    assert len(rows) * width <= len(own) * longest
