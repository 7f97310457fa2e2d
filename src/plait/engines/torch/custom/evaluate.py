"""Evaluate: one datum's loss, its slope at every log-prob, and its metrics.

Always on the CPU and in one thread: an index that is out of range must be an error, not the end of
a CUDA context, and a sum must not depend on how many cores are free. Whatever goes wrong is the
client's: a RequestError (NotFinite, where numbers run away) that names the node. Memory that runs
out is not, and is let by.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from plait.core.custom_losses import CustomLoss, Node
from plait.core.custom_ops import DTYPES
from plait.core.errors import NotFinite, RequestError
from plait.engines.torch.custom.operations import MAX_INT, function_of
from plait.engines.torch.custom.sizes import elements, extent
from plait.engines.torch.memory import out_of_memory

NODE_BYTES = 8 * 1024
"""What a node counts for at least: its time (some 30 µs with its gradient) is that of so much."""
ITEM_BYTES = 1024
"""What each of a list of arguments counts for: 3 µs, with its gradient."""
_DTYPES = {name: getattr(torch, name) for name in DTYPES}
_FAULTS = (
    RuntimeError,
    TypeError,
    ValueError,
    IndexError,
    ArithmeticError,
    AttributeError,
    KeyError,
    AssertionError,
)
"""What torch and Python raise on arguments that make no sense."""
MAX_NDIM = 4
"""Dimensions of a value: indices that operations make for themselves are one for each."""
MAX_SAID = 200
"""Characters of such an error that are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What a loss gives for one datum."""

    loss: float
    slopes: torch.Tensor
    """∂ loss / ∂ log-prob, fp32, of the log-probs' shape."""
    metrics: dict[str, float]


def evaluate(
    loss: CustomLoss,
    logprobs: torch.Tensor,
    inputs: Mapping[str, torch.Tensor],
    allowance: int,
) -> Evaluated:
    """``allowance``: bytes that all of its values may have together."""
    leaf = logprobs.detach().to(device="cpu", dtype=torch.float32).clone().requires_grad_()
    given = [leaf, *(inputs[each.name] for each in loss.inputs[1:])]
    values = dict(zip(loss.places, given, strict=True))
    with _alone(), torch.enable_grad():
        _Run(loss, values, allowance).all()
        total = _scalar(loss, values[loss.loss])
        try:
            (slopes,) = torch.autograd.grad(total, leaf, allow_unused=True)
        except _FAULTS as error:
            raise _told(loss, "its gradient", error) from None
    if slopes is None:
        raise RequestError(f"{_of(loss)} has no gradient by its log-probs")
    if not bool(torch.isfinite(slopes).all()):
        raise NotFinite(f"{_of(loss)} has a slope that is not finite: check its inputs")
    metrics = {key: _metric(loss, key, values[node]) for key, node in loss.metrics.items()}
    return Evaluated(loss=float(total.detach()), slopes=slopes, metrics=metrics)


@contextmanager
def _alone() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Run:
    """One way through the nodes."""

    def __init__(self, loss: CustomLoss, values: dict[str, Any], allowance: int) -> None:
        self._loss, self._values, self._left = loss, values, allowance

    def all(self) -> None:
        for node in self._loss.nodes:
            where = f"{node.name} ({node.target})"
            try:
                self._values[node.name] = self._one(node, where)
            except RequestError as error:
                raise RequestError(f"{_of(self._loss)}, {where}: {error}") from None
            except _FAULTS as error:
                raise _told(self._loss, where, error) from None

    def _one(self, node: Node, where: str) -> Any:
        args = [self._value(arg) for arg in node.args]
        kwargs = {key: self._value(arg) for key, arg in node.kwargs.items()}
        function = function_of(node.target, kwargs)
        width = max([4, *(t.element_size() for t in _tensors([*args, *kwargs.values()]))])
        charged = self._charge(NODE_BYTES, width * elements(node.target, args, kwargs))
        made = function(*args)
        _check(made)
        size = sum(t.element_size() * extent(t.shape) for t in _tensors([made]))
        self._charge(0, size - charged)
        return made

    def _charge(self, least: int, size: int) -> int:
        taken = max(least, size)
        self._left -= taken
        if self._left < 0:
            raise RequestError(
                "its values would be too large for one datum among these: send less at once, or "
                "shorter sequences"
            )
        return taken

    def _value(self, told: Any) -> Any:
        if isinstance(told, list):
            return self._several(told)
        if not isinstance(told, dict):
            return told
        ((kind, inner),) = told.items()
        match kind:
            case "ref":
                return self._values[inner]
            case "tuple":
                return tuple(self._several(inner))
            case "slice":
                return slice(*(self._value(each) for each in inner))
            case "ellipsis":
                return Ellipsis
            case "float":
                return float(inner)
            case "dtype":
                return _DTYPES[inner]
            case "device":
                return torch.device(inner)
        raise RequestError(f"an argument of the kind {kind!r:.40}")

    def _several(self, told: list[Any]) -> list[Any]:
        self._charge(0, ITEM_BYTES * len(told))
        return [self._value(each) for each in told]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _check(made: Any) -> None:
    """A value is a tensor of real numbers, such a number, or some of them."""
    match made:
        case torch.Tensor():
            if made.ndim > MAX_NDIM:
                raise RequestError(f"it has more than {MAX_NDIM} dimensions")
            if made.dtype not in _DTYPES.values():
                raise RequestError(f"it gives numbers of the type {made.dtype}")
        case tuple():
            for each in made:
                _check(each)
        case bool() | float() | torch.dtype() | torch.device():
            pass
        case int() if -MAX_INT <= made < MAX_INT:
            pass
        case _:
            raise RequestError(f"it gives a {type(made).__name__}, which is no value here")


def _scalar(loss: CustomLoss, value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.ndim or not value.is_floating_point():
        shape = f"of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else "no tensor"
        raise RequestError(f"{_of(loss)} must return one number, not what is {shape}")
    if not value.requires_grad:
        raise RequestError(f"{_of(loss)} has no gradient by its log-probs")
    # As fp32, whatever it is: so the sum over all data, in fp64, is a number too.
    if not bool(torch.isfinite(value.detach().float())):
        raise NotFinite(f"{_of(loss)} is not finite: check its inputs and log-probs")
    return value


def _metric(loss: CustomLoss, key: str, value: Any) -> float:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value.detach().reshape(()))
    if isinstance(value, bool | int | float):
        return float(value)
    raise RequestError(f"{_of(loss)}: metric {key} must be one number")


def _of(loss: CustomLoss) -> str:
    return f"custom loss {loss.name!r:.80}"


def _told(loss: CustomLoss, where: str, error: Exception) -> Exception:
    """The client's error; the machine's own as it is."""
    if out_of_memory(error):
        return error
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return RequestError(f"{_of(loss)}, {where}: {said[:MAX_SAID]}")
