"""Calling: import a reward function and call it as TRL does. Runs in a grader process.

``fn(prompts=[…], completions=[…], **columns)``; a function without ``**kwargs`` gets the columns
that it names. A module's ``reward_prepare()``, if there is one, runs once when it is loaded, before
any deadline: for imports and models that take long.
"""

import asyncio
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plait.core.errors import RewardError

Function = Callable[..., Any]


def load_function(target: str) -> Function:
    """The function behind ``module:function``; RewardError if there is none."""
    module_name, _, name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise RewardError(
                f"no module {module_name}: put {module_name}.py beside the job file or install it"
            ) from error
        raise RewardError(
            f"{module_name} needs the module {error.name}, which is not installed"
        ) from error
    found = getattr(module, name, None)
    if not callable(found):
        raise RewardError(f"{module_name} has no function {name}: check the reward's name")
    prepare = getattr(module, "reward_prepare", None)
    if callable(prepare):
        prepare()
    return found  # type: ignore[no-any-return]


def call_function(
    function: Function,
    prompts: Sequence[Any],
    completions: Sequence[Any],
    columns: Mapping[str, Sequence[Any]],
) -> object:
    """What the function returns; a coroutine is run to its end."""
    given = {**columns, "prompts": list(prompts), "completions": list(completions)}
    result = function(**_accepted(function, given))
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def _accepted(function: Function, given: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    missing = [
        p.name
        for p in parameters
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        and p.name not in given
    ]
    if missing:
        raise RewardError(
            f"it wants the column {missing[0]}, and the environment has {', '.join(given)}"
        )
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return given
    return {p.name: given[p.name] for p in parameters if p.name in given}
