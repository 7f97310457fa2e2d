"""Making: the source of an environment's process, and what it says of itself."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plait.envs.apart.wording import cut
from plait.envs.contain import loading
from plait.envs.declared import read_declared
from plait.envs.protocol import TaskSource
from plait.envs.registry import make_source
from plait.envs.single import SingleTurn
from plait.models.tokenizer import Tokenizer


def make(setup: Mapping[str, Any]) -> tuple[TaskSource, dict[str, Any]]:
    """The source and what it says of itself; ConfigError if it cannot be made."""
    target = setup["target"]
    tokenizer = Tokenizer(Path(setup["model_dir"]))
    source = make_source(target, setup["config"], tokenizer, setup["seed"])
    declared = read_declared(source)
    with loading(f"environment {target}"):
        name = cut(str(source.name))
        scores = source.scores if isinstance(source, SingleTurn) else True
    return source, {
        "name": name,
        "same_prompt": declared.same_prompt,
        "max_turns": declared.max_turns,
        "max_observation_tokens": declared.max_observation_tokens,
        "scores": bool(scores),
    }
