"""Query rows: every own position in one row, few places of padding."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from plait.engines.torch.train.batch import pack
from plait.engines.torch.train.checked import Checked
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


def test_a_micro_batch_lays_out_a_shared_prefix_once() -> None:
    prefix = list(range(64))
    data = [
        Checked(
            tokens=np.array([*prefix, *range(100 + 40 * i, 132 + 40 * i)]),
            targets=np.arange(96),
            scored=np.array([95]),
            inputs={},
            moves=np.array([True]),
        )
        for i in range(8)
    ]
    packed = pack([data], torch.device("cpu"))
    assert (packed.n_rows, packed.width, packed.longest) == (10, 32, 96)
    assert len(packed.tokens_N) == 64 + 8 * 32
    alone = pack([data[:1]], torch.device("cpu"))
    assert (alone.n_rows, alone.width, alone.queries_Q) == (1, 96, None)
