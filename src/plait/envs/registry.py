"""Registry: from the name in a job file's ``environment`` section to its problems.

A name is a built-in or a user's ``module:attribute`` (a ``SingleTurn`` class, or any
``TaskFactory``). Modules are imported when first used. Keys that an environment does not know are
refused by name: here where it says what it knows (``Config``), else by its factory.
"""

import difflib
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from plait.core.errors import ConfigError
from plait.envs.contain import loading
from plait.envs.declared import read_declared
from plait.envs.protocol import TaskFactory, TaskSource
from plait.models.tokenizer import Tokenizer
from plait.sections import read_section

TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
PATH_KEYS = ("file", "eval_file")
"""Keys of built-ins that are paths, relative to the job file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    name: str
    target: str
    description: str
    config: str | None = None
    """Name of the pydantic model beside the factory, where the factory is a function."""


KNOWN = (
    _Entry(
        name="reasoning-gym",
        target="plait.envs.reasoning:ReasoningGym",
        description="any reasoning-gym dataset, scored by its own verifier",
    ),
    _Entry(
        name="dataset",
        target="plait.envs.dataset:DatasetSource",
        description="prompts and answers from a .jsonl or .parquet file",
    ),
    _Entry(
        name="multi-turn",
        target="plait.envs.multiturn:MultiTurn",
        description="arithmetic with retries: most samples end in 1-2 turns, some reach 5",
    ),
    _Entry(
        name="search",
        target="plait.envs.search:factory",
        description="two-hop questions answered with a search tool over a real corpus",
        config="SearchConfig",
    ),
    _Entry(
        name="tiny-sum",
        target="plait.envs.tiny:sum_factory",
        description="one-turn sums for the tiny model",
        config="SumConfig",
    ),
    _Entry(
        name="tiny-sort",
        target="plait.envs.tiny:sort_factory",
        description="sorting with retries for the tiny model",
        config="SortConfig",
    ),
    _Entry(
        name="tiny-lookup",
        target="plait.envs.tiny:lookup_factory",
        description="looking things up in a table for the tiny model",
        config="LookupConfig",
    ),
)


def known() -> list[tuple[str, str, tuple[str, ...]]]:
    """Name, one line about it, and the keys it takes, of every built-in environment."""
    rows = []
    for entry in KNOWN:
        model = _model(_import(entry.name, entry.target), entry)
        rows.append((entry.name, entry.description, tuple(model.model_fields) if model else ()))
    return rows


def make_source(
    name: str,
    config: Mapping[str, Any],
    tokenizer: Tokenizer,
    seed: int,
    base_dir: str | Path = "",
) -> TaskSource:
    """The problems of an environment; ConfigError if the name or a key is wrong.

    ``base_dir`` is what relative paths in ``config`` are relative to.
    """
    entry = _find(name)
    factory = _import(entry.name, entry.target)
    if entry in KNOWN and base_dir:
        config = {
            key: _placed(base_dir, value) if key in PATH_KEYS and isinstance(value, str) else value
            for key, value in config.items()
        }
    if (model := _model(factory, entry)) is not None:
        read_section(model, config, f"environment {name}")
    with loading(f"environment {name}"):
        source = factory(config, tokenizer, seed)
        for attribute in ("name", "same_prompt", "max_turns", "make", "aclose"):
            if not hasattr(source, attribute):  # which asks a property for its value
                raise ConfigError(
                    f"environment {name} made {type(source).__name__}, which has no {attribute}: "
                    "return a TaskSource (or derive from plait.envs.single.SingleTurn)"
                )
        read_declared(source)
    return source


def _placed(base_dir: str | Path, value: str) -> str:
    try:
        return str(Path(base_dir, value).expanduser())
    except RuntimeError as error:  # ~somebody, whom this machine does not know
        raise ConfigError(f"environment file {value}: {error}: write the path out") from error


def _find(name: str) -> _Entry:
    for entry in KNOWN:
        if entry.name == name:
            return entry
    if TARGET.fullmatch(name):
        return _Entry(name=name, target=name, description="")
    names = [entry.name for entry in KNOWN]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
    raise ConfigError(f"there is no environment {name}: {hint} (your own: module:attribute)")


def _import(name: str, target: str) -> TaskFactory:
    module_name, _, attribute = target.partition(":")
    with loading(f"environment {name}"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"environment {name}: no module {error.name}: install it, or put it beside the job "
                "file"
            ) from error
    factory = getattr(module, attribute, None)
    if factory is not None and not callable(factory):
        raise ConfigError(
            f"environment {name}: {target} is a {type(factory).__name__}: name a SingleTurn class "
            "or a function (config, tokenizer, seed) that returns a TaskSource"
        )
    if factory is None:
        near = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f": did you mean {module_name}:{near[0]}?" if near else ""
        raise ConfigError(f"environment {name}: {module_name} has no {attribute}{hint}")
    return factory  # type: ignore[no-any-return]


def _model(factory: object, entry: _Entry) -> type[BaseModel] | None:
    """The pydantic model of the environment's keys, if it shows one."""
    model = getattr(factory, "Config", None)
    if model is None and entry.config is not None:
        module = importlib.import_module(entry.target.partition(":")[0])
        model = getattr(module, entry.config, None)
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None
