import numpy as np
import pytest

from plait.engines.torch import parts as parts_module
from plait.engines.torch.parts import Part

NULL = 999


def make_parts(table, n_blocks, groups) -> list[Part]:
    return parts_module.make_parts(table, n_blocks, groups, null_block=NULL, block_bytes=24_000)


def tables(*rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
    width = max(map(len, rows))
    table = np.array([r + [NULL] * (width - len(r)) for r in rows])
    return table, np.array([len(r) for r in rows])


def read_back(parts) -> dict[int, list[int]]:
    """Every row's blocks as attention will see them."""
    seen = {}
    for part in parts:
        for i, row in enumerate(part.rows.tolist()):
            blocks: list[int] = []
            if part.shared is not None:
                most = part.shared.members_CM.shape[1]
                cluster, member = divmod(int(part.shared.place_B[i]), most)
                assert part.shared.members_CM[cluster, member] == i
                n = part.shared.n_blocks_C[cluster]
                assert n == part.n_shared_B[i]
                assert set(part.shared.table_CS[cluster, n:].tolist()) <= {NULL}
                blocks += part.shared.table_CS[cluster, :n].tolist()
            blocks += [b for b in part.table_BN[i].tolist() if b != NULL]
            assert row not in seen
            seen[row] = blocks
    return seen


def n_gathered(parts) -> int:
    return sum(p.table_BN.size + (0 if p.shared is None else p.shared.table_CS.size) for p in parts)


@pytest.fixture
def cheap(monkeypatch) -> None:
    monkeypatch.setattr(parts_module, "PART_COST_BYTES", 24_000)
    monkeypatch.setattr(parts_module, "SHARED_COST_BYTES", 1)


def test_rows_of_like_length_stay_in_one_part() -> None:
    rows = [[10 * i, 10 * i + 1, 10 * i + 2][: 2 + i % 2] for i in range(6)]
    (part,) = make_parts(*tables(*rows), range(6))
    assert part.rows.tolist() == list(range(6))
    assert read_back([part]) == dict(enumerate(rows))


def test_a_few_long_rows_do_not_lengthen_all_others() -> None:
    rows = [list(range(100 * i, 100 * i + (40 if i in (3, 9) else 4))) for i in range(12)]
    parts = make_parts(*tables(*rows), range(12))
    assert sorted(p.rows.tolist() for p in parts) == [[0, 1, 2, 4, 5, 6, 7, 8, 10, 11], [3, 9]]
    assert n_gathered(parts) == 2 * 40 + 10 * 4
    assert read_back(parts) == dict(enumerate(rows))


def test_a_group_reads_its_prompt_once(cheap) -> None:
    prompt = list(range(8))
    rows = [[*prompt, 100 + i] for i in range(5)]
    parts = make_parts(*tables(*rows), [7] * 5)
    assert n_gathered(parts) == 8 + 5
    assert read_back(parts) == dict(enumerate(rows))


def test_groups_of_other_sizes_and_lengths_go_together_and_loose_rows_apart(cheap) -> None:
    rows = [
        [1, 2, 3, 50],
        [9, 8, 51, 52],
        [1, 2, 3, 53],
        [60, 61, 62, 63],
        [9, 8, 54],
        [1, 2, 3, 55],
    ]
    parts = make_parts(*tables(*rows), [1, 2, 1, 3, 2, 1])
    assert read_back(parts) == dict(enumerate(rows))
    assert [p.rows.tolist() for p in parts] == [[0, 2, 5, 1, 4], [3]]


def test_a_common_beginning_is_found_without_a_common_prompt(cheap) -> None:
    rows = [[1, 2, 3, 4, 50 + i, 60 + i] for i in range(4)]
    parts = make_parts(*tables(*rows), range(4))
    assert n_gathered(parts) == 4 + 4 * 2


def test_every_row_keeps_a_block_of_its_own(cheap) -> None:
    rows = [[1, 2, 3], [1, 2, 3]]
    parts = make_parts(*tables(*rows), [1, 1])
    assert all((p.table_BN[:, 0] != NULL).all() for p in parts)
    assert read_back(parts) == dict(enumerate(rows))


def test_little_sharing_is_left_alone() -> None:
    rows = [[1, 2, 50 + i] for i in range(4)]
    (part,) = make_parts(*tables(*rows), [1] * 4)
    assert part.shared is None


@pytest.mark.parametrize("seed", range(30))
def test_no_block_is_lost_or_invented(seed: int, cheap) -> None:
    rng = np.random.default_rng(seed)
    rows, groups, fresh = [], [], 1000
    for g in range(rng.integers(1, 6)):
        prompt = [int(b) for b in rng.integers(0, 3, rng.integers(0, 12))]
        prompt = [100 * g + 10 * i + b for i, b in enumerate(prompt)] if g % 2 else prompt
        for _ in range(rng.integers(1, 5)):
            own = list(range(fresh, fresh + rng.integers(1, 6)))
            fresh += 10
            rows.append(prompt + own)
            groups.append(g)
    assert read_back(make_parts(*tables(*rows), groups)) == dict(enumerate(rows))
