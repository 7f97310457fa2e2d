"""Sizes: how many elements an operation will make or go through, before it is carried out.

Never less than it will be, except by what a type is wider than its arguments' (which is looked at
afterwards): memory that is not there cannot be asked for. What an operation could only fail at, it
is left to fail at.
"""

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import torch

from plait.core.custom_ops import OPERATIONS, Makes
from plait.core.errors import RequestError

SLOW = 16
"""Times as long as an addition: sorting, functions that are series, spreads of short rows."""


def elements(target: str, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """Elements that an operation goes through or makes, the larger of the two."""
    held = list(_tensors([*args, *kwargs.values()]))
    match OPERATIONS[target]:
        case Makes.FACT:
            return 0
        case Makes.EACH:
            return _together(t.shape for t in held)
        case Makes.SLOWLY:
            return SLOW * _together(t.shape for t in held)
        case Makes.VIEW:
            return _held(held)
        case Makes.GROWN:
            return _GROWN[target.partition(".")[2]](list(args), kwargs)
        case Makes.PICKED:
            # However little is picked: the gradient is as large as what it is picked from.
            most = max((extent(t.shape) for t in held), default=0)
            return max(most, _PICKED[target.partition(".")[2]](list(args), kwargs))


def _held(tensors: Iterable[torch.Tensor]) -> int:
    return sum(extent(t.shape) for t in tensors)


def extent(shape: Iterable[int]) -> int:
    """Elements of a shape, whose empty dimensions count as one: a sum over such a dimension makes
    all the others."""
    return prod(filter(None, map(abs, shape)))


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _together(shapes: Iterable[Sequence[int]]) -> int:
    """Elements of shapes broadcast together; of the largest, where they cannot be."""
    known = list(shapes)
    together = _broadcast(known)
    return max(map(extent, known)) if together is None else together


def _broadcast(shapes: Sequence[Sequence[int]]) -> int | None:
    """Elements of shapes broadcast together, if they can be (torch's own takes longer than adding
    the tensors)."""
    if all(shape == shapes[0] for shape in shapes[1:]):
        return extent(shapes[0]) if shapes else 1
    n = 1
    for place in range(1, 1 + max(map(len, shapes))):
        sizes = {shape[-place] for shape in shapes if place <= len(shape)} - {1}
        if len(sizes) > 1:
            return None
        n *= (sizes.pop() or 1) if sizes else 1
    return n


def _tensor(args: list[Any], kwargs: dict[str, Any], place: int, *names: str) -> torch.Tensor:
    value = args[place] if place < len(args) else next((kwargs[n] for n in names if n in kwargs), 0)
    if not isinstance(value, torch.Tensor):
        raise RequestError(f"argument {place} must be a tensor")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise RequestError("a size is a whole number")
    return value


def _sizes(args: list[Any], kwargs: dict[str, Any], *names: str) -> list[int]:
    """Sizes, as one list or one by one."""
    given: Any = args or next((kwargs[name] for name in names if name in kwargs), [])
    if isinstance(given, list | tuple) and len(given) == 1 and isinstance(given[0], list | tuple):
        given = given[0]
    if not isinstance(given, list | tuple):
        given = [given]
    return [_whole(size) for size in given]


def _expand(args: list[Any], kwargs: dict[str, Any]) -> int:
    shape = _tensor(args, kwargs, 0, "input").shape
    sizes = _sizes(args[1:], kwargs, "size")
    own = [1] * max(0, len(sizes) - len(shape)) + list(shape)
    pairs = zip(reversed(sizes), reversed(own), strict=False)
    return extent(old if new == -1 else new for new, old in pairs)


def _repeat(args: list[Any], kwargs: dict[str, Any]) -> int:
    times = _sizes(args[1:], kwargs, "repeats", "dims")
    return extent([*_tensor(args, kwargs, 0, "input").shape, *times])


def _new(args: list[Any], kwargs: dict[str, Any]) -> int:
    return extent(_sizes(args[1:], kwargs, "size"))


def _new_full(args: list[Any], kwargs: dict[str, Any]) -> int:
    return extent(_sizes(args[1:2], kwargs, "size"))


def _all_of(args: list[Any], kwargs: dict[str, Any]) -> int:
    return _held(_tensors([*args, *kwargs.values()]))


def _outer(args: list[Any], kwargs: dict[str, Any]) -> int:
    return prod(extent(t.shape) for t in _tensors([*args, *kwargs.values()]))


def _product(args: list[Any], kwargs: dict[str, Any]) -> int:
    """Multiplications of a matrix product."""
    a = _tensor(args, kwargs, 0, "input", "self").shape
    b = _tensor(args, kwargs, 1, "mat2", "other", "vec", "tensor").shape
    batch = _together([a[:-2], b[:-2]])
    return batch * extent(a[-2:]) * extent(b[-1:] if len(b) > 1 else ())


def _pad(args: list[Any], kwargs: dict[str, Any]) -> int:
    shape = list(_tensor(args, kwargs, 0, "input").shape)
    pads = _sizes(args[1:2], kwargs, "pad")
    grown = [abs(a) + abs(b) for a, b in zip(pads[::2], pads[1::2], strict=False)]
    by_dim = zip(reversed(shape), grown + [0] * len(shape), strict=False)
    return extent(size + more for size, more in by_dim)


def _gather(args: list[Any], kwargs: dict[str, Any]) -> int:
    return extent(_tensor(args, kwargs, 2, "index").shape)


def _index_select(args: list[Any], kwargs: dict[str, Any]) -> int:
    source, index = _tensor(args, kwargs, 0, "input"), _tensor(args, kwargs, 2, "index")
    dim = _whole(args[1] if len(args) > 1 else kwargs.get("dim"))
    size = source.shape[dim] if source.ndim else 1
    return extent(source.shape) // max(1, size) * extent(index.shape)


def _take(args: list[Any], kwargs: dict[str, Any]) -> int:
    return extent(_tensor(args, kwargs, 1, "index").shape)


def _getitem(args: list[Any], kwargs: dict[str, Any]) -> int:
    value, index = args
    if not isinstance(value, torch.Tensor):
        return 0
    items = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(item, bool) for item in items):
        raise RequestError("an index is no truth value")
    used = sum(_consumed(item) for item in items)
    dims = list(value.shape)
    n, picked = 1, list[Sequence[int]]()
    for item in items:
        if item is None:
            continue
        if item is Ellipsis:
            here, dims = dims[: max(0, len(dims) - used)], dims[max(0, len(dims) - used) :]
            n *= extent(here)
            continue
        here, dims = dims[: _consumed(item)], dims[_consumed(item) :]
        used -= _consumed(item)
        match item:
            case int():
                pass
            case slice():
                bounds = (item.start, item.stop, item.step)
                if not all(b is None or isinstance(b, int) for b in bounds) or item.step == 0:
                    raise RequestError("a slice is of whole numbers")
                n *= (len(range(*item.indices(here[0]))) or 1) if here else 1
            case torch.Tensor():
                picked.append((item.numel(),) if item.dtype == torch.bool else item.shape)
            case list():
                # torch takes a list of anything else apart, as if it were several indices.
                if not all(isinstance(each, int) for each in item):
                    raise RequestError("a list of indices is of whole numbers")
                picked.append((len(item),))
            case _:
                raise RequestError("an index is a whole number, a slice or a tensor")
    return n * extent(dims) * (_picked(picked) if picked else 1)


def _picked(shapes: list[Sequence[int]]) -> int:
    together = _broadcast([tuple(shape) for shape in shapes])
    # Else there are masks, of which it is not known how many they let by.
    return prod(map(extent, shapes)) if together is None else together


def _consumed(item: Any) -> int:
    """Dimensions that an index takes up."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, torch.Tensor) and item.dtype == torch.bool else 1


Rule = Callable[[list[Any], dict[str, Any]], int]
_GROWN: dict[str, Rule] = {
    "broadcast_to": _expand,
    "expand": _expand,
    "expand_as": _all_of,
    "repeat": _repeat,
    "tile": _repeat,
    "new_zeros": _new,
    "new_ones": _new,
    "new_full": _new_full,
    "cat": _all_of,
    "concat": _all_of,
    "stack": _all_of,
    "outer": _outer,
    "ger": _outer,
    "dot": _all_of,
    "matmul": _product,
    "mm": _product,
    "bmm": _product,
    "mv": _product,
    "pad": _pad,
}
_PICKED: dict[str, Rule] = {
    "gather": _gather,
    "index_select": _index_select,
    "take": _take,
    "scatter": _all_of,
    "scatter_add": _all_of,
    "index_add": _all_of,
    "getitem": _getitem,
}
