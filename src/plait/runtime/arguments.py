"""Arguments: what a caller hands to an operation, as the types that the operation says.

Looked at here, where the mistake is made, and before anything is written down for the operation:
what crosses to a worker is then plain. Whether the values make sense (ids in the vocabulary,
lengths, ranges) is the engine's to say, which knows the model.
"""

import math
import operator
import re
from collections.abc import Iterable
from dataclasses import fields, replace
from numbers import Real
from typing import Any, TypeVar

from plait.core.errors import RequestError
from plait.core.ids import RUN_NAME
from plait.core.operations import AdamParams, Datum, SamplingParams
from plait.core.runs import ALL_LINEAR, MAX_RANK, MAX_SEED, MIN_SEED, TARGETS, LoraSpec

D = TypeVar("D")
MAX_SHOWN = 60
"""Characters of a wrong value that are shown."""


def run_name(name: object) -> str:
    """A run's name, which is the name of its directory."""
    if isinstance(name, str) and re.fullmatch(RUN_NAME, name):
        return name
    raise RequestError(
        f"run name {_shown(name)}: use up to 100 letters, digits, . _ + -, a letter or digit first"
    )


def token_ids(what: str, ids: Iterable[int]) -> tuple[int, ...]:
    """Token ids as plain ints."""
    if isinstance(ids, str | bytes):
        raise RequestError(f"{what} {_shown(ids)} is text: give its token ids, a list of ints")
    try:
        return tuple(map(operator.index, ids))
    except TypeError as error:
        raise RequestError(
            f"{what} {_shown(ids)} is no list of token ids ({error}): give whole numbers"
        ) from error


def whole_number(what: str, value: object) -> int:
    """One int, of whatever kind of integer it was."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise RequestError(f"{what} is {_shown(value)}: give a whole number") from None


def sampling(params: object) -> SamplingParams:
    """Sampling parameters with every field of its type."""
    given = _instance(SamplingParams, params)
    stop: Any = given.stop
    if isinstance(stop, str):
        raise RequestError(f"stop {stop!r} is one string: give a tuple of strings, ({stop!r},)")
    if not isinstance(stop, list | tuple) or not all(isinstance(s, str) for s in stop):
        raise RequestError(f"stop is {_shown(stop)}: give a tuple of strings")
    return replace(
        given,
        max_tokens=whole_number("max_tokens", given.max_tokens),
        temperature=_real("temperature", given.temperature),
        top_k=whole_number("top_k", given.top_k),
        top_p=_real("top_p", given.top_p),
        stop=tuple(stop),
        stop_tokens=token_ids("stop_tokens", given.stop_tokens),
        ignore_eos=bool(given.ignore_eos),
        seed=whole_number("seed", given.seed),
    )


def adam(params: object) -> AdamParams:
    """An optimizer's parameters, each a float."""
    given = _instance(AdamParams, params)
    return replace(given, **{f.name: _real(f.name, getattr(given, f.name)) for f in fields(given)})


def lora(spec: object, names: tuple[str, ...] = TARGETS) -> LoraSpec:
    """An adapter's shape with every field of its type, and in the range that every engine has: the
    run is written down with it before an engine sees it, and cannot be made with another later.

    ``names`` are those of the model's linear layers; the default targets are all in its blocks."""
    given = _instance(LoraSpec, spec)
    targets: Any = given.targets
    if not isinstance(targets, list | tuple) or not all(isinstance(t, str) for t in targets):
        raise RequestError(f"LoRA targets are {_shown(targets)}: give a tuple of layers' names")
    seed = whole_number("the LoRA seed", given.seed)
    if not MIN_SEED <= seed <= MAX_SEED:
        raise RequestError(f"the LoRA seed is {_shown(seed)}: give one of at most 64 bits")
    rank, alpha = whole_number("the LoRA rank", given.rank), _real("LoRA alpha", given.alpha)
    if not 1 <= rank <= MAX_RANK:
        raise RequestError(f"the LoRA rank is {_shown(rank)}: choose 1 to {MAX_RANK}")
    if not (math.isfinite(alpha) and alpha > 0):
        raise RequestError(f"LoRA alpha is {alpha}: choose a positive number")
    unknown = set() if set(targets) == set(ALL_LINEAR) else set(targets) - set(names)
    if not targets or unknown:
        wrong = f"hold {min(unknown)}" if targets else "are empty"
        raise RequestError(f"LoRA targets {wrong}: choose from {', '.join(names)}")
    return LoraSpec(rank=rank, alpha=alpha, targets=tuple(targets), seed=seed)


def batch(data: object) -> tuple[Datum, ...]:
    """Data, each with its sequences: input tokens are plain ids, the rest is the engine's to look
    at."""
    given = tuple(data) if isinstance(data, Iterable) else (None,)
    for i, datum in enumerate(given):
        if not isinstance(datum, Datum):
            raise RequestError(f"the data are {_shown(data)}: give a list of Datum")
        inputs = datum.inputs
        if not isinstance(inputs, dict):
            raise RequestError(f"datum {i}: inputs are {_shown(inputs)}: give a dictionary")
        parts = {k: getattr(datum, k) for k in ("input_tokens", "target_tokens", "mask")} | inputs
        for name, values in parts.items():
            if not hasattr(values, "__len__") or isinstance(values, str | bytes):
                raise RequestError(f"datum {i}: {name} is {_shown(values)}: give a list")
    return tuple(
        replace(d, input_tokens=token_ids(f"datum {i}: input_tokens", d.input_tokens))
        for i, d in enumerate(given)
    )


def _instance(kind: type[D], value: object) -> D:
    if isinstance(value, kind):
        return value
    raise RequestError(f"{_shown(value)} is no {kind.__name__}: give plait.{kind.__name__}(…)")


def _real(what: str, value: object) -> float:
    if isinstance(value, Real):
        return float(value)
    raise RequestError(f"{what} is {_shown(value)}: give a number")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python writes
        text = f"a {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
