"""Deterministic mode through whole launches: who shares the machine shows in no byte."""

from pathlib import Path

import pytest
import yaml
from launches import final_state, rows, samples
from programs import run

from plait.obs.jsonl import read_jsonl

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

COMMON = {
    "groups": 3,
    "samples": 4,
    "steps": 4,
    "limits": {"max_tokens": 12},
    "optimizer": {"learning_rate": 4e-3},
    "evaluation": {"every": 2, "items": 4},
}
MINE = (
    {"name": "single", "environment": {"name": "tiny-sum"}},
    {"name": "turns", "environment": {"name": "tiny-sort"}, "algorithm": {"kl_coef": 0.01}},
    {"name": "ahead", "environment": {"name": "tiny-sum"}, "staleness": 2, "steps": 6},
)
OTHERS = [
    {"name": "wide", "environment": {"name": "tiny-sum"}, "adapter": {"rank": 16}, "samples": 8},
    {"name": "long", "environment": {"name": "tiny-sort"}, "limits": {"max_tokens": 20}},
    {"name": "late", "environment": {"name": "tiny-sum"}, "staleness": 1, "seed": 4},
]


def launch(folder: Path, name: str, jobs: list[dict[str, object]], *flags: object) -> Path:
    file, directory = folder / f"{name}.yaml", folder / name
    file.write_text(yaml.safe_dump({"jobs": [{**COMMON, **job} for job in jobs]}))
    code, _, err = run("run", file, "--dir", directory, *flags)
    assert code == 0, err
    return directory


def test_alone_and_with_three_others_every_byte_is_the_same(tmp_path: Path) -> None:
    for mine in MINE:
        name = str(mine["name"])
        alone = launch(tmp_path, f"{name}-alone", [mine], "--deterministic", "--cores", 1)
        crowd = launch(
            tmp_path,
            f"{name}-shared",
            [OTHERS[0], mine, *OTHERS[1:]],
            *("--deterministic", "--cores", 2, "--kv-blocks", 120),
        )
        assert samples(crowd, name) == samples(alone, name)
        assert rows(crowd, name) == rows(alone, name)
        assert final_state(crowd, name) == final_state(alone, name)
        steps = [row for row in rows(crowd, name) if "reward_mean" in row]
        if "staleness" in mine:
            assert [row["staleness"] for row in steps if row["version"]][-1] > 0
        else:
            assert {row["sampler_trainer_logprob_max_diff"] for row in steps} <= {0.0, None}


def test_nor_does_the_number_of_workers(tmp_path: Path) -> None:
    mine = dict(MINE[0])
    alone = launch(tmp_path, "alone", [mine], "--deterministic", "--cores", 1)
    others = [{**job, "sampling": {"ignore_eos": True}} for job in OTHERS]
    several = ("--rollout-workers", 2, "--training-workers", 2, "--no-elastic")
    crowd = launch(
        tmp_path,
        "shared",
        [others[0], mine, *others[1:]],
        "--deterministic",
        "--cores",
        2,
        *several,
    )
    for read in (samples, rows, final_state):
        assert read(crowd, "single") == read(alone, "single")
    workers = {row["worker"] for row in read_jsonl(crowd / "workers.jsonl")}
    assert workers == {"rollout-0", "rollout-1", "train-0", "train-1"}


def test_without_the_mode_they_are_not(tmp_path: Path) -> None:
    """Else the test above would show nothing."""
    mine = dict(MINE[2])
    alone = launch(tmp_path, "alone", [mine], "--cores", 1)
    crowd = launch(tmp_path, "shared", [OTHERS[0], mine, *OTHERS[1:]], "--kv-blocks", 120)
    assert final_state(crowd, "ahead") != final_state(alone, "ahead")
