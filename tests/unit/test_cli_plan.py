"""plait.cli.plan: plans what plait run would run, refuses what that would, and tidies up."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from plait.cli import main

ENVIRONMENT = """
log = []

class Env:
    stop = ()
    async def start(self): return (5,) * 20
    async def step(self, tokens): raise NotImplementedError
    def columns(self): return {}
    def close(self): log.append("env")

class Source:
    name, same_prompt, max_turns = "counted", True, 3
    def __init__(self, config):
        if "said" in config:
            self.max_observation_tokens = config["said"]
    def make(self, index, split): return Env()
    async def aclose(self): log.append("source")

def factory(config, tokenizer, seed):
    return Source(config)
"""


def plan(capsys: pytest.CaptureFixture[str], folder: Path, *jobs: dict[str, Any]) -> Any:
    (folder / "counted_env.py").write_text(ENVIRONMENT)
    base = {"steps": 2, "groups": 1, "samples": 2, "limits": {"max_tokens": 16}}
    file = folder / "jobs.yaml"
    file.write_text(yaml.safe_dump({"defaults": base, "jobs": list(jobs)}))
    with pytest.raises(SystemExit) as end:
        main.plan([file], cores=1, kv_blocks=256, format=main.Format.JSON)
    said = capsys.readouterr()
    return json.loads(said.out) if end.value.code == 0 else said.err


def counted(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "environment": {"name": "counted_env:factory", **keys}}


def test_observations_count_and_everything_is_closed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = plan(capsys, tmp_path, counted("quiet"), counted("talks", said=160))
    quiet, talks = (job["kv_blocks"] for job in found["jobs"])
    assert talks - quiet == 2 * 160 // 4, "of two samples"
    import counted_env  # type: ignore[import-not-found]

    assert counted_env.log.count("source") == 2
    assert counted_env.log.count("env") == 2 * 4, "those that were looked at"


def test_several_models_are_refused_as_by_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = counted("a"), {**counted("b"), "model": "smollm2-135m"}
    assert "the jobs name several models" in plan(capsys, tmp_path, *jobs)


def test_a_job_without_room_is_refused_as_by_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = plan(capsys, tmp_path, {**counted("a"), "limits": {"max_tokens": 500}})
    assert said.startswith("error: job a: the prompt of problem 0 has 20 tokens")
