"""Which decode steps go through static buffers, and in what sizes."""

import pytest

from plait.engines.torch.replays import MAX_GATHER_BYTES, Key, choose, fill_up

STEP = {"n_decodes": 5, "n_chunks": 0, "n_blocks": 9, "columns": 48, "block_bytes": 1024}


def test_sizes_are_few_and_at_most_a_third_of_one_is_filling() -> None:
    sizes = [fill_up(n) for n in range(1, 1000)]
    assert sorted(set(sizes))[:10] == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    assert len(set(sizes)) == 20
    assert all(n <= size <= 1.5 * n for n, size in enumerate(sizes, 1))


def test_what_a_graph_depends_on() -> None:
    assert choose(**STEP) == Key(rows=6, blocks=12, columns=48)
    assert choose(**STEP | {"n_decodes": 6, "n_blocks": 12}) == choose(**STEP)
    assert choose(**STEP | {"columns": 0}) == Key(rows=6, blocks=12, columns=0)


@pytest.mark.parametrize(
    "eager",
    [
        {"n_decodes": 0},
        {"n_chunks": 1},
        {"columns": None},
        {"block_bytes": MAX_GATHER_BYTES // 72 + 1},
    ],
)
def test_steps_that_go_the_eager_way(eager: dict[str, int | None]) -> None:
    assert choose(**STEP | {"block_bytes": MAX_GATHER_BYTES // 72}) is not None
    assert choose(**STEP | eager) is None
