"""Every example loads, and its environments take the keys that it gives them."""

from pathlib import Path

import pytest

from plait.envs.registry import known
from plait.jobs.load import dump_resolved, load_jobs

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 7


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.stem)
def test_example_loads_and_its_resolved_form_too(file: Path, tmp_path: Path) -> None:
    for job in load_jobs([file]):
        resolved = tmp_path / f"{job.name}.yaml"
        resolved.write_text(dump_resolved(job))
        assert load_jobs([resolved]) == (job,)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.stem)
def test_environments_know_the_keys_that_examples_give_them(file: Path) -> None:
    keys = {name: set(taken) for name, _, taken in known()}
    for job in load_jobs([file]):
        assert set(job.environment.config) <= keys[job.environment.name]


def test_all_examples_can_run_together() -> None:
    assert len({job.name for job in load_jobs(EXAMPLES)}) >= 12
