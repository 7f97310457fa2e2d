"""Operations: what carries out each name of ``core.custom_ops``.

Nothing that a client sends is looked up here: names come from that table. What only Python can do
(arithmetic of sizes, attributes) is written out, so that neither text nor lists are ever added,
multiplied or formatted.
"""

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from plait.core.custom_ops import ATTRIBUTES, GETATTR, OPERATIONS
from plait.core.errors import RequestError

MAX_INT = 2**63
LEAST = (-(2**31), -MAX_INT)
"""Whole numbers, of 32 bits and of 64."""
DIVISIONS = ("div", "divide", "floor_divide", "floordiv", "fmod", "mod", "remainder")
"""What divides whole numbers."""
MAX_EXPONENT = 64
"""Of a power of whole numbers; others are computed as floats."""
POSITIONAL = {
    "functional.relu": 1,
    "functional.silu": 1,
    "functional.sigmoid": 1,
    "functional.tanh": 1,
    "functional.normalize": 4,
}
"""Where a further argument would mean "in place" or "into this"."""
DROPPED = ("device", "inplace", "_stacklevel", "size_average", "reduce", "non_blocking", "copy")
"""Options that are recorded with their defaults, or say nothing here: everything is on the CPU."""


def _method(name: str) -> Callable[..., Any]:
    function = getattr(torch.Tensor, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not args or not isinstance(args[0], torch.Tensor):
            raise RequestError("a method of what is no tensor")
        return function(*args, **kwargs)

    return call


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def _arithmetic(name: str) -> Callable[..., Any]:
    function = getattr(operator, name)

    def call(*args: Any) -> Any:
        if not all(isinstance(a, torch.Tensor) or _is_number(a) for a in args):
            raise RequestError("arithmetic of what is neither a tensor nor a number")
        if name == "pow" and all(isinstance(a, int) for a in args):
            base, exponent = args
            if not (0 <= exponent <= MAX_EXPONENT and abs(base) < 2**32):
                return float(base) ** exponent
        return function(*args)

    return call


def _mathematics(name: str) -> Callable[..., Any]:
    function = getattr(math, name)

    def call(*args: Any) -> Any:
        if not all(map(_is_number, args)):
            raise RequestError(f"math.{name} is of numbers: use torch.{name} for tensors")
        return function(*args)

    return call


def _attribute(value: Any, name: str) -> Any:
    if name in ("values", "indices"):
        if not isinstance(value, tuple) or not hasattr(value, name):
            raise RequestError(f"{name} of what is no pair of values and indices")
    elif not isinstance(value, torch.Tensor) or name not in ATTRIBUTES:
        raise RequestError(f"{name} of what is no tensor")
    return getattr(value, name)


def _item(value: Any, index: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value[index]
    if isinstance(value, tuple) and isinstance(index, int | slice):
        return value[index]
    raise RequestError("an item of what is neither a tensor nor a shape")


def _choice(function: Callable[..., Any]) -> Callable[..., Any]:
    """``where`` of three: of one alone it makes indices, as many as it has dimensions."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) + len(kwargs) != 3:
            raise RequestError("where takes a condition and two values")
        return function(*args, **kwargs)

    return call


def _view(*args: Any, **kwargs: Any) -> Any:
    """A view of another shape. One of another type would read the same bytes as something else."""
    if kwargs or any(isinstance(arg, torch.dtype) for arg in args):
        raise RequestError("view takes sizes: use to for another type")
    return torch.Tensor.view(*args)


def _division(function: Callable[..., Any]) -> Callable[..., Any]:
    """The least whole number divided by -1 is none any more: the processor ends the process."""

    def call(*args: Any, **kwargs: Any) -> Any:
        of = [*args, *kwargs.values()]
        if any(isinstance(v, float) or (torch.is_tensor(v) and v.is_floating_point()) for v in of):
            return function(*args, **kwargs)
        whole = [torch.as_tensor(v).long() for v in of if isinstance(v, int | torch.Tensor)]
        if any((v == -1).any() for v in whole) and any(v.eq(m).any() for v in whole for m in LEAST):
            raise RequestError("the least whole number is not divided by -1")
        return function(*args, **kwargs)

    return call


_SPECIAL = {
    "torch.where": _choice(torch.where),
    "method.where": _choice(torch.Tensor.where),
    "method.view": _view,
}


def _at_most(n: int, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > n:
            raise RequestError(f"at most {n} arguments without a name")
        return function(*args, **kwargs)

    return call


def _made(name: str) -> Callable[..., Any]:
    if name in _SPECIAL:
        return _SPECIAL[name]
    prefix, _, rest = name.partition(".")
    match prefix:
        case "torch":
            return getattr(torch, rest)
        case "special":
            return getattr(torch.special, rest)
        case "functional":
            function = torch.relu if rest == "relu" else getattr(F, rest)
            return _at_most(POSITIONAL.get(name, 6), function)
        case "method":
            return _method(rest)
        case "math":
            return _mathematics(rest)
    if name == GETATTR:
        return _attribute
    return _item if rest == "getitem" else _arithmetic(rest)


def _guarded(name: str) -> Callable[..., Any]:
    prefix, _, rest = name.partition(".")
    divides = prefix != "math" and rest in DIVISIONS
    return _division(_made(name)) if divides else _made(name)


FUNCTIONS: dict[str, Callable[..., Any]] = {name: _guarded(name) for name in OPERATIONS}


def function_of(target: str, kwargs: dict[str, Any]) -> Callable[..., Any]:
    """What carries out an operation with these options; RequestError on one that is not taken."""
    if kwargs.get("inplace"):
        raise RequestError("nothing is done in place here")
    if any(kwargs.get(name) is not None for name in ("size_average", "reduce")):
        raise RequestError("size_average and reduce are not taken: say reduction")
    wanted = {key: value for key, value in kwargs.items() if key not in DROPPED}
    return partial(FUNCTIONS[target], **wanted)
