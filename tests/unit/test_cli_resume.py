"""plait.cli.resume: a launch goes on as it was being done, but for what is asked for now."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plait.cli import main
from plait.cli.resume import left_of, overridden
from plait.core.errors import ConfigError
from plait.jobs.load import dump_resolved
from plait.jobs.spec import JobSpec
from plait.runtime.settings import Settings


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A launch that was killed before it did anything."""
    job = tmp_path / "jobs" / "a"
    job.mkdir(parents=True)
    spec = JobSpec.model_validate({"name": "a", "environment": {"name": "tiny-sum"}, "steps": 1})
    (job / "config.yaml").write_text(dump_resolved(spec))
    info = {
        "policy": "marlaas",
        "policy_options": {"max_active": 1},
        "jobs": ["a"],
        "settings": {"cores": 3, "deterministic": False},
    }
    (tmp_path / "launch.json").write_text(json.dumps(info))
    return tmp_path


def test_the_policys_options_and_the_settings_are_kept(begun: Path) -> None:
    left = left_of(begun)
    assert (left.policy, left.options) == ("marlaas", {"max_active": 1})
    assert left.settings == Settings(cores=3)
    assert [spec.name for spec in left.specs] == ["a"]


def test_what_is_asked_for_now_goes_first() -> None:
    before = Settings(cores=3, kv_blocks=7)
    flags = Settings(
        deterministic=True,
        elastic=False,
        lean=True,
        recompute=True,
        rollout_workers=2,
        training_workers=3,
    )
    assert overridden(before, replace(flags, cores=2)) == replace(flags, cores=2, kv_blocks=7)
    assert overridden(flags, Settings()) == flags
    assert overridden(flags, Settings(rollout_workers=1)) == replace(flags, rollout_workers=1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"policy": ',
        "[]",
        "{}",
        "\xff",
        '{"policy": "plait", "jobs": 5}',
        '{"policy": "plait", "jobs": [5]}',
        '{"policy": "plait", "settings": []}',
        '{"policy": "plait", "jobs": ["a"], "settings": {"cores": "three"}}',
        '{"policy": "plait", "jobs": ["a"], "settings": {"lean": 1}}',
        '{"policy": "plait", "policy_options": [1]}',
        '{"policy": "plait", "machine": {"cores": "x"}}',
        '{"policy": ' + "[" * 5000 + "]" * 5000 + "}",
    ],
)
def test_a_damaged_launch_json_is_one_line(begun: Path, text: str) -> None:
    (begun / "launch.json").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"launch\.json") as found:
        left_of(begun)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"directory": Path("elsewhere")}, "leave --dir out"),
        ({"files": [Path("a.yaml")]}, "give job files, or --resume DIR"),
    ],
)
def test_flags_that_would_do_nothing_are_refused(
    begun: Path, flags: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main.run(resume=begun, **flags)
    assert end.value.code == 2
    assert message in capsys.readouterr().err
