"""plait.envs.registry: names, users' own environments, and what is refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from plait.core.errors import ConfigError
from plait.envs.registry import known, make_source
from plait.models.tokenizer import Tokenizer

OWN = """
from plait.envs.single import Problem, SingleTurn

class Double(SingleTurn):
    def generate(self, rng):
        n = rng.randint(1, 99)
        return Problem(prompt=f"Double {n}.", answer=str(2 * n))

    def score(self, problem, completion):
        return float(problem.answer in completion)

def broken(config, tokenizer, seed):
    return object()
"""


@pytest.fixture
def tokenizer(byte_model: Path) -> Tokenizer:
    return Tokenizer(byte_model)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_environment.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_known_environments_show_their_keys() -> None:
    rows = {name: (description, keys) for name, description, keys in known()}
    tiny = {"tiny-sum", "tiny-sort", "tiny-lookup"}
    assert {"reasoning-gym", "dataset", "multi-turn", "search"} | tiny == set(rows)
    assert all(description for description, _ in rows.values())
    assert rows["dataset"][1][:2] == ("file", "prompt")
    assert all(keys for _, keys in rows.values())


def test_every_known_name_makes_a_source(tokenizer: Tokenizer) -> None:
    for name in ("tiny-sum", "tiny-sort", "tiny-lookup", "multi-turn"):
        assert make_source(name, {}, tokenizer, 0).max_turns >= 1


def test_unknown_names_and_keys(tokenizer: Tokenizer) -> None:
    with pytest.raises(
        ConfigError, match="no environment reasoning-gim: did you mean reasoning-gym"
    ):
        make_source("reasoning-gim", {}, tokenizer, 0)
    with pytest.raises(ConfigError, match="known are reasoning-gym, dataset"):
        make_source("zzz", {}, tokenizer, 0)
    with pytest.raises(ConfigError, match="did you mean latency_s"):
        make_source("tiny-sum", {"latency": 1}, tokenizer, 0)
    with pytest.raises(ConfigError, match="needs the key file"):
        make_source("dataset", {}, tokenizer, 0)


@pytest.mark.usefixtures("own")
async def test_a_users_own(tokenizer: Tokenizer) -> None:
    env = make_source("own_environment:Double", {}, tokenizer, 0).make(0, "train")
    await env.start()
    assert (await env.step(tokenizer.encode(str(env.columns()["answer"])))).reward == 1.0
    with pytest.raises(ConfigError, match="no key speed"):
        make_source("own_environment:Double", {"speed": 1}, tokenizer, 0)
    with pytest.raises(ConfigError, match="did you mean own_environment:Double"):
        make_source("own_environment:Doubel", {}, tokenizer, 0)
    with pytest.raises(ConfigError, match="has no name: return a TaskSource"):
        make_source("own_environment:broken", {}, tokenizer, 0)
    with pytest.raises(ConfigError, match="no module nowhere: install it, or put it beside"):
        make_source("nowhere:Env", {}, tokenizer, 0)


def test_nothing_heavy_is_imported() -> None:
    """Listing environments must not cost what running them costs."""
    code = (
        "import sys; from plait.envs.registry import known; known();"
        "import plait.rewards.pool, plait.rewards.judge;"
        "heavy = {'torch','transformers','reasoning_gym','pyarrow','openai','faiss','math_verify'};"
        "print(*(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
