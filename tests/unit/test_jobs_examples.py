"""Every example loads, and its environments take the keys that it gives them."""

from pathlib import Path

import pytest

from plait.envs.registry import known
from plait.jobs.load import dump_resolved, load_jobs
from plait.jobs.yamlfile import read_yaml
from plait.sim.setting_file import setting_from

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("[12]*.yaml"))
"""Job files."""
WORKLOADS = sorted(FOLDER.glob("3*.yaml"))
"""Of ``plait sim``."""


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 7
    assert len(WORKLOADS) >= 2
    assert sorted(FOLDER.glob("*.yaml")) == EXAMPLES + WORKLOADS


@pytest.mark.parametrize("file", WORKLOADS, ids=lambda f: f.stem)
def test_workload_can_be_simulated_and_says_how(file: Path) -> None:
    setting = setting_from(read_yaml(file).data)
    assert len(setting.jobs) >= 2
    assert f"plait sim examples/{file.name}" in file.read_text()


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
