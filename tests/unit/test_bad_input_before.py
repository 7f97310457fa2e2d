"""Bad input that is found before any worker starts: one line, exit code 2, nothing begun."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from plait.cli import main

Told = Callable[..., str]

LONG_SOURCE = """
class Env:
    stop = ()
    def __init__(self, n): self.n = n
    async def start(self): return (5,) * self.n
    async def step(self, tokens): raise NotImplementedError
    def columns(self): return {}

class Source:
    name, same_prompt, max_turns = "long", True, 1
    def make(self, index, split): return Env(self.n)
    async def aclose(self): pass

def factory(config, tokenizer, seed):
    source = Source()
    source.n = config["n"]
    return source

def broken(config, tokenizer, seed):
    return factory({"n": "many"}, tokenizer, seed)
"""


@pytest.fixture
def told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Told:
    """Runs a job file that cannot work; what the user is told in its one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "long_env.py").write_text(LONG_SOURCE)

    def run(policy: str = "plait", kv_blocks: int = 0, **over: object) -> str:
        job = {"name": "bad", "environment": {"name": "tiny-sum"}, "steps": 1, **over}
        (tmp_path / "bad.yaml").write_text(yaml.safe_dump(job))
        with pytest.raises(SystemExit) as end:
            main.run([tmp_path / "bad.yaml"], policy, tmp_path / "out", kv_blocks=kv_blocks)
        assert end.value.code == 2
        said = capsys.readouterr()
        assert said.out == ""
        lines = said.err.splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("error: ")
        assert not (tmp_path / "out").exists(), "something was begun"
        return lines[0]

    return run


def test_unknown_model(told: Told) -> None:
    assert "tinny" in (line := told(model="tinny"))
    assert "tiny" in line.split("tinny", 1)[1], "what to write instead"


def test_unknown_environment(told: Told) -> None:
    assert "did you mean tiny-sum?" in told(environment={"name": "tiny-sums"})


def test_unknown_key_of_the_environment(told: Told) -> None:
    assert "latency_s" in told(environment={"name": "tiny-sum", "latency": 1})


def test_unknown_policy(told: Told) -> None:
    assert "did you mean 'sequential'?" in told(policy="sequental")


def test_unknown_key(told: Told) -> None:
    assert "did you mean `samples`?" in told(sample=4)


def test_lora_target_that_matches_nothing(told: Told) -> None:
    line = told(adapter={"targets": ["q_prj"]})
    assert "matches no linear layer: did you mean `q_proj`?" in line


def test_prompt_longer_than_the_context(told: Told) -> None:
    line = told(
        environment={"name": "long_env:factory", "n": 600},
        limits={"max_tokens": 8, "max_prompt_tokens": 4000},
    )
    assert "job bad: the prompt of problem 0 has 600 tokens, at most 504 fit" in line


def test_more_new_tokens_than_context(told: Told) -> None:
    assert "the model's context only 512: lower it" in told(limits={"max_tokens": 512})


def test_sample_that_never_fits_the_cache(told: Told) -> None:
    line = told(kv_blocks=8, limits={"max_tokens": 64})
    assert "tokens of cache and there are 32: raise --kv-blocks" in line


def test_environment_that_cannot_make_a_problem(told: Told) -> None:
    line = told(environment={"name": "long_env:broken"})
    assert "train problem 0 cannot be made: TypeError" in line


def test_reward_function_that_is_not_there(told: Told) -> None:
    line = told(rewards=[{"function": "no_such_module:score"}])
    assert "no module no_such_module: put no_such_module.py beside the job file" in line


def test_environment_without_any_reward(told: Told, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 4)
    line = told(environment={"name": "dataset", "file": "q.jsonl"})
    assert line == "error: job bad: environment dataset gives no reward: add `rewards:`"


def test_controller_that_is_not_there(told: Told) -> None:
    assert "controller long_env:Nobody" in told(controller="long_env:Nobody")


@pytest.mark.parametrize("named", ["os:system", "os:path", "threading:Thread", "long_env:Env"])
def test_controller_that_is_none(told: Told, named: str) -> None:
    line = told(controller=named)
    assert f"controller {named} of job bad is no controller: name a class that takes" in line


def test_environment_that_is_a_module(told: Told) -> None:
    line = told(environment={"name": "os:path"})
    assert "os:path is a module: name a SingleTurn class or a function" in line
    assert "did you mean" not in line


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("os:getcwd", "TypeError"),
        ("leaves:factory", "SystemExit: 0 (leaves.py:4)"),
        ("leaves_at_once:factory", "SystemExit: 0 (leaves_at_once.py:2)"),
        ("broken:factory", "SyntaxError"),
    ],
)
def test_environment_whose_code_raises(told: Told, tmp_path: Path, name: str, says: str) -> None:
    leaves = "import sys\n\ndef factory(*_):\n    sys.exit(0)\n"
    (tmp_path / "leaves.py").write_text(leaves)
    (tmp_path / "leaves_at_once.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "broken.py").write_text("def factory(:\n")
    assert says in told(environment={"name": name})


def test_tracker_whose_package_is_missing(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.obs.trackers.find_spec", lambda name: None)
    assert "pip install 'plait[wandb]'" in told(trackers=["wandb"])


def test_jobs_of_different_models(told: Told, byte_model: Path) -> None:
    line = told(matrix={"model": ["tiny", str(byte_model)]})
    assert "run each model by itself" in line
