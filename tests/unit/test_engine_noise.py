"""plait.engines.torch.noise: exponential, and a function of seed, index, place and number alone."""

import numpy as np

from plait.engines.torch.noise import draw_keys, exponentials, stream


def test_variates_are_exponential_and_a_function_of_what_names_them() -> None:
    streams = [stream(seed, index) for seed in range(30) for index in range(30)]
    assert len(set(streams)) == 900
    keys = draw_keys(np.repeat(np.array(streams, dtype=np.uint64), 10), np.tile(np.arange(10), 900))
    assert len(np.unique(keys)) == len(keys)
    e = exponentials(keys, np.arange(4))
    assert e.shape == (9000, 4)
    assert e.min() > 0
    assert len(np.unique(e)) == e.size
    counts = np.histogram(np.exp(-e), 20, (0, 1))[0]
    assert np.abs(counts - e.size / 20).max() < 5 * np.sqrt(e.size / 20)
    for a, b in ((e[:-1], e[1:]), (e[:, :-1], e[:, 1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.03
    again = exponentials(draw_keys([streams[31]], [4]), np.array([[3, 1 << 33]]))
    assert again[0, 0] == e[314, 3]
    assert again[0, 1] != e[314, 0]


def test_negative_and_huge_seeds_are_seeds() -> None:
    assert len({stream(seed, 0) for seed in (-1, 0, 1, 2**63, 2**70 + 5)}) == 5
