"""Sweeps: which jobs, and what they are called."""

import pytest

from plait.jobs.matrix import MatrixError, expand


def names(matrix: object, name: str = "a") -> list[str]:
    return [job["name"] for job in expand({"name": name}, matrix)]


def test_one_job_per_combination_the_first_key_slowest() -> None:
    jobs = list(
        expand(
            {"name": "a", "optimizer": {"beta1": 0.8}},
            {"optimizer.learning_rate": [1e-4, 3e-4], "adapter.rank": [8, 16]},
        )
    )
    assert [j["name"] for j in jobs] == [
        "a-lr1e-4-r8",
        "a-lr1e-4-r16",
        "a-lr3e-4-r8",
        "a-lr3e-4-r16",
    ]
    assert jobs[2] == {
        "name": "a-lr3e-4-r8",
        "optimizer": {"beta1": 0.8, "learning_rate": 3e-4},
        "adapter": {"rank": 8},
    }


def test_jobs_share_nothing() -> None:
    first, second = expand({"name": "a", "sampling": {"stop": []}}, {"seed": [1, 2]})
    first["sampling"]["stop"].append("x")
    assert second["sampling"]["stop"] == []


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ({"seed": [1, 2]}, ["a-s1", "a-s2"]),
        ({"optimizer.learning_rate": [0.5, 1e-05]}, ["a-lr0.5", "a-lr1e-5"]),
        ({"algorithm.name": ["grpo", "reinforce++"]}, ["a-grpo", "a-reinforce++"]),
        ({"environment": [{"name": "x", "n": 1}, {"name": "y"}]}, ["a-x", "a-y"]),
        ({"environment": [{"name": "x", "n": 1}, {"name": "x", "n": 2}]}, ["a-x_1", "a-x_2"]),
        ({"model": ["tiny", "/data/my model"]}, ["a-tiny", "a-my_model"]),
        ({"adapter.seed": [1], "seed": [2]}, ["a-adapter_seed1-seed2"]),
        ({"sampling.stop": [["\n"], [";;"]]}, ["a-stop_1", "a-stop_2"]),
    ],
)
def test_names_say_the_values_and_are_directories(matrix, expected: list[str]) -> None:
    assert names(matrix) == expected


@pytest.mark.parametrize(
    ("matrix", "key", "why"),
    [
        ([1, 2], None, "must map keys to lists"),
        ({}, None, "must map keys to lists"),
        ({"seed": 3}, "seed", "must be a list"),
        ({"seed": []}, "seed", "must be a list"),
        ({"name": ["x"]}, "name", "names are made"),
        ({"name.x": [1]}, "name.x", "`name` is not a section"),
        ({"seed": list(range(100)), "groups": list(range(100))}, None, "more than 1000"),
    ],
)
def test_what_makes_no_jobs_is_refused(matrix, key: str | None, why: str) -> None:
    with pytest.raises(MatrixError, match=why) as caught:
        names(matrix)
    assert caught.value.key == key
