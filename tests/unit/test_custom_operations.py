"""Custom operations: each does what torch does, under the name that a trace gives it, and makes no
more than it was said to make.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from custom_support import graph_of

from plait.core.custom_ops import OPERATIONS, Makes, canonical
from plait.core.errors import RequestError
from plait.engines.torch.custom.operations import FUNCTIONS, function_of
from plait.engines.torch.custom.sizes import SLOW, elements

X = torch.linspace(-2.0, -0.1, 12).reshape(3, 4)
P = X.exp()
I3 = torch.tensor([[0, 2, 1, 0]])
LEAST_64 = torch.full((1, 4), -(2**63))


def test_every_name_has_a_function() -> None:
    assert FUNCTIONS.keys() == OPERATIONS.keys()


def test_none_of_them_writes_or_draws() -> None:
    names = {name.partition(".")[2] for name in OPERATIONS}
    assert not [name for name in names if name.endswith("_") and name not in ("and_", "or_")]
    assert not [name for name in names if "rand" in name or "dropout" in name]


def _name(function: Callable[..., Any]) -> str | None:
    (node,) = (n for n in graph_of(function)["nodes"] if n["op"].startswith("call_"))
    prefix = "torch.Tensor." if node["op"] == "call_method" else ""
    return canonical(prefix + node["target"])


TRACED: dict[str, Callable[..., Any]] = {
    "torch.exp": lambda x: torch.exp(x),
    "torch.where": lambda x: torch.where(x, 1.0, 2.0),
    "torch.norm": lambda x: torch.norm(x),
    "torch.cat": lambda x: torch.cat([x, x]),
    "torch.logsumexp": lambda x: torch.logsumexp(x, 0),
    "torch.cosine_similarity": lambda x: F.cosine_similarity(x, x),
    "torch.sigmoid": lambda x: torch.sigmoid(x),
    "functional.relu": lambda x: F.relu(x),
    "functional.silu": lambda x: F.silu(x),
    "functional.softplus": lambda x: F.softplus(x),
    "functional.logsigmoid": lambda x: F.logsigmoid(x),
    "functional.log_softmax": lambda x: F.log_softmax(x, dim=-1),
    "functional.softmax": lambda x: F.softmax(x, dim=-1),
    "functional.kl_div": lambda x: F.kl_div(x, x, reduction="sum", log_target=True),
    "functional.mse_loss": lambda x: F.mse_loss(x, x),
    "functional.huber_loss": lambda x: F.huber_loss(x, x),
    "functional.smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x),
    "functional.l1_loss": lambda x: F.l1_loss(x, x),
    "functional.binary_cross_entropy_with_logits": (
        lambda x: F.binary_cross_entropy_with_logits(x, x)
    ),
    "functional.normalize": lambda x: F.normalize(x, dim=0),
    "functional.gelu": lambda x: F.gelu(x),
    "functional.pad": lambda x: F.pad(x, (1, 0)),
    "special.expm1": lambda x: torch.special.expm1(x),
    "special.xlogy": lambda x: torch.special.xlogy(x, x),
    "special.entr": lambda x: torch.special.entr(x),
    "operator.add": lambda x: x + 1,
    "operator.sub": lambda x: 1 - x,
    "operator.getitem": lambda x: x[1:],
    "operator.and_": lambda x: x & x,
    "operator.pow": lambda x: x**2,
    "operator.neg": lambda x: -x,
    "operator.abs": lambda x: abs(x),
    "operator.matmul": lambda x: x @ x,
    "getattr": lambda x: x.shape,
    "method.sum": lambda x: x.sum(),
    "method.float": lambda x: x.float(),
    "method.size": lambda x: x.size(0),
    "math.sqrt": lambda x: math.sqrt(x),
}


@pytest.mark.parametrize("name", TRACED)
def test_a_trace_names_it_so(name: str) -> None:
    assert _name(TRACED[name]) == name


Call = tuple[str, tuple[Any, ...], dict[str, Any], Any]
CALLS: list[Call] = [
    ("torch.exp", (X,), {}, X.exp()),
    ("torch.clamp", (X, -1.0), {"max": -0.5}, X.clamp(-1.0, -0.5)),
    ("torch.minimum", (X, X[0]), {}, torch.minimum(X, X[0])),
    ("torch.where", (X > -1, X, 0.0), {}, torch.where(X > -1, X, 0.0)),
    ("torch.std", (X,), {"dim": 1}, X.std(1)),
    ("torch.max", (X,), {"dim": 1}, X.max(1)),
    ("torch.logsumexp", (X, 1), {}, X.logsumexp(1)),
    ("torch.full_like", (X, 2.0), {"device": torch.device("cpu")}, torch.full_like(X, 2.0)),
    ("functional.relu", (X + 1,), {"inplace": False}, F.relu(X + 1)),
    ("functional.silu", (X,), {}, F.silu(X)),
    ("functional.softmax", (X,), {"dim": -1, "_stacklevel": 3, "dtype": None}, X.softmax(-1)),
    ("functional.logsigmoid", (X,), {}, F.logsigmoid(X)),
    ("functional.kl_div", (X, P), {"reduction": "sum"}, F.kl_div(X, P, reduction="sum")),
    ("functional.pad", (X, (1, 2)), {}, F.pad(X, (1, 2))),
    ("special.entr", (P,), {}, torch.special.entr(P)),
    ("torch.sort", (X,), {"descending": True}, X.sort(descending=True)),
    ("torch.topk", (X, 2), {}, X.topk(2)),
    ("torch.median", (X,), {}, X.median()),
    ("method.cumsum", (X, 0), {}, X.cumsum(0)),
    ("method.reshape", (X, 4, 3), {}, X.reshape(4, 3)),
    ("method.transpose", (X, 0, 1), {}, X.T),
    ("method.unsqueeze", (X, 0), {}, X[None]),
    ("method.expand", (X[0], 5, 4), {}, X[0].expand(5, 4)),
    ("method.expand", (X[:, :1], (-1, 7)), {}, X[:, :1].expand(-1, 7)),
    ("method.repeat", (X, 2, 3), {}, X.repeat(2, 3)),
    ("torch.tile", (X, (2,)), {}, X.tile(2)),
    ("method.new_zeros", (X, 3), {}, torch.zeros(3)),
    ("method.new_full", (X, (2, 2), 5.0), {}, torch.full((2, 2), 5.0)),
    ("torch.cat", ([X, X],), {"dim": 1}, torch.cat([X, X], 1)),
    ("torch.stack", ([X, X],), {}, torch.stack([X, X])),
    ("torch.outer", (X[0], X[1]), {}, torch.outer(X[0], X[1])),
    ("torch.dot", (X[0], X[1]), {}, X[0] @ X[1]),
    ("torch.matmul", (X, X.T), {}, X @ X.T),
    ("torch.mv", (X, X[0]), {}, X @ X[0]),
    ("operator.matmul", (X[None], X.T), {}, X[None] @ X.T),
    ("torch.gather", (X, 0, I3), {}, X.gather(0, I3)),
    ("torch.index_select", (X, 1), {"index": I3[0]}, X.index_select(1, I3[0])),
    ("torch.take", (X, I3), {}, X.take(I3)),
    ("torch.scatter_add", (X, 0, I3, X[:1]), {}, X.scatter_add(0, I3, X[:1])),
    ("torch.masked_select", (X, X > -1), {}, X[X > -1]),
    ("operator.getitem", (X, (slice(None), slice(None, -1))), {}, X[:, :-1]),
    ("operator.getitem", (X, (Ellipsis, 0)), {}, X[..., 0]),
    ("operator.getitem", (X, (None, I3[0][:3], [1, 2, 0])), {}, X[None, I3[0][:3], [1, 2, 0]]),
    ("operator.getitem", (X, X > -1), {}, X[X > -1]),
    ("operator.getitem", (X.shape, 0), {}, 3),
    ("operator.getitem", (X.max(1), 0), {}, X.max(1).values),
    ("operator.mul", (X, 2), {}, 2 * X),
    ("operator.mul", (3, 4), {}, 12),
    ("operator.pow", (2, 10), {}, 1024),
    ("operator.pow", (2, -1), {}, 0.5),
    ("operator.truediv", (1, 4), {}, 0.25),
    ("math.sqrt", (16,), {}, 4.0),
    ("getattr", (X, "shape"), {}, X.shape),
    ("getattr", (X.max(1), "indices"), {}, X.max(1).indices),
    ("method.size", (X, -1), {}, 4),
    ("method.to", (X, torch.float64), {}, X.double()),
    ("method.type_as", (I3, X), {}, I3.float()),
]


@pytest.mark.parametrize("call", CALLS, ids=[f"{i}-{call[0]}" for i, call in enumerate(CALLS)])
def test_it_gives_what_torch_gives_and_no_more_than_was_said(call: Call) -> None:
    name, args, kwargs, want = call
    said = elements(name, args, kwargs)
    got = function_of(name, kwargs)(*args)
    assert type(got) is type(want)
    for ours, theirs in _pairs(got, want):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
        if name != "getattr" and not isinstance(args[0], tuple):  # what is there already
            assert ours.numel() <= said
    if not isinstance(want, torch.Tensor | tuple) or isinstance(want, torch.Size):
        assert got == want


def _pairs(got: Any, want: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if isinstance(want, torch.Tensor):
        return [(got, want)]
    if isinstance(want, tuple) and not isinstance(want, torch.Size):
        return list(zip(got, want, strict=True))
    return []


LARGE = 10**9
COLUMN, ROW = torch.zeros(10**5, 1), torch.zeros(1, 10**5)
WIDE = torch.zeros(1, dtype=torch.long).expand(10**4, 10**4)
SAID: list[tuple[str, tuple[Any, ...], int]] = [
    ("torch.add", (COLUMN, ROW), 10**10),
    ("operator.mul", (COLUMN, ROW), 10**10),
    ("functional.mse_loss", (COLUMN, ROW), 10**10),
    ("functional.kl_div", (COLUMN, ROW), 10**10),
    ("torch.where", (COLUMN > 0, ROW, 0.0), 10**10),
    ("method.masked_fill", (COLUMN, ROW > 0, 0.0), 10**10),
    ("torch.sort", (COLUMN,), SLOW * 10**5),
    ("torch.cosine_similarity", (COLUMN, COLUMN, 1), SLOW * 10**5),
    ("method.std", (COLUMN, 1), SLOW * 10**5),
    ("method.expand", (COLUMN, -1, LARGE), 10**14),
    ("method.expand", (COLUMN, [LARGE, 10**5, LARGE]), 10**23),
    ("torch.broadcast_to", (COLUMN, (10**5, LARGE)), 10**14),
    ("method.repeat", (COLUMN, LARGE, 2), 2 * 10**14),
    ("torch.tile", (COLUMN, (LARGE,)), 10**14),
    ("method.new_zeros", (COLUMN, LARGE, LARGE), 10**18),
    ("method.new_ones", (COLUMN, (LARGE,)), LARGE),
    ("method.new_full", (COLUMN, [LARGE], 1.0), LARGE),
    ("functional.pad", (COLUMN, (LARGE, 0, 0, LARGE)), (LARGE + 1) * (10**5 + LARGE)),
    ("torch.outer", (COLUMN[:, 0], ROW[0]), 10**10),
    ("torch.matmul", (COLUMN, ROW), 10**10),
    ("torch.matmul", (ROW, COLUMN), 10**5),
    ("torch.stack", ([COLUMN] * 100,), 10**7),
    ("operator.getitem", (ROW, (torch.zeros(10**5, dtype=torch.long),)), 10**10),
    ("operator.getitem", (COLUMN, WIDE), 10**8),
    ("torch.gather", (COLUMN, 0, WIDE), 10**8),
    ("torch.index_select", (ROW, 0, torch.zeros(10**5, dtype=torch.long)), 10**10),
    # Nothing of a size: what goes over it makes as much as the other sizes say.
    ("torch.sum", (X.new_zeros(LARGE, 0), 1), LARGE),
    ("method.new_zeros", (X, LARGE, 0), LARGE),
    ("method.reshape", (X.new_zeros(LARGE, 0), (0, LARGE)), LARGE),
    ("method.expand", (X.new_zeros(1, 0), LARGE, 0), LARGE),
    ("method.repeat", (X, 0, LARGE), 12 * LARGE),
    ("torch.tile", (X, (LARGE, 0)), 12 * LARGE),
    ("torch.matmul", (X.new_zeros(10**5, 0), X.new_zeros(0, 10**5)), 10**10),
    ("torch.matmul", (X.new_zeros(LARGE, 1, 0, 64), X.new_zeros(2, 64, 64)), 2 * 64**2 * LARGE),
    ("operator.getitem", (X.new_zeros(1, 1).expand(LARGE, 1), (slice(None), slice(0, 0))), LARGE),
    # Of much, little: its gradient is much.
    ("operator.getitem", (COLUMN, 3), 10**5),
    ("torch.take", (COLUMN, torch.tensor([0])), 10**5),
]


@pytest.mark.parametrize("call", SAID, ids=[f"{i}-{call[0]}" for i, call in enumerate(SAID)])
def test_what_would_be_large_is_known_before(call: tuple[str, tuple[Any, ...], int]) -> None:
    name, args, n = call
    assert elements(name, args, {}) == n


REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("functional.relu", (X,), {"inplace": True}, "in place"),
    ("functional.relu", (X, True), {}, "at most 1"),
    ("functional.silu", (X, 1), {}, "at most 1"),
    ("functional.normalize", (X, 2.0, 1, 1e-12, X), {}, "at most 4"),
    ("functional.mse_loss", (X, P), {"size_average": False}, "say reduction"),
    ("operator.mul", ((1,), 10**9), {}, "neither a tensor nor a number"),
    ("operator.add", ((1,), (2,)), {}, "neither a tensor nor a number"),
    ("operator.mod", ("%99999999d", 1), {}, "neither a tensor nor a number"),
    ("operator.getitem", ([1, 2], 0), {}, "neither a tensor nor a shape"),
    ("math.exp", (torch.tensor(1.0),), {}, "use torch.exp"),
    ("method.exp", (1.0,), {}, "no tensor"),
    ("getattr", (1, "shape"), {}, "no tensor"),
    ("getattr", (X, "values"), {}, "no pair"),
    ("torch.where", (X > -1,), {}, "two values"),
    ("method.where", (X, X > -1), {}, "two values"),
    ("method.view", (X, torch.bool), {}, "view takes sizes"),
    ("torch.div", (LEAST_64, -1), {"rounding_mode": "trunc"}, "the least whole number"),
    ("method.div", (LEAST_64, -I3 // I3.clamp(1)), {"rounding_mode": "trunc"}, "the least"),
    (
        "torch.divide",
        (torch.full((9,), -(2**31), dtype=torch.int32), -1),
        {"rounding_mode": "trunc"},
        "the least",
    ),
    ("operator.floordiv", (-(2**63), -LEAST_64.clamp(min=1)), {}, "the least"),
    ("torch.remainder", (LEAST_64,), {"other": -1}, "the least"),
    ("torch.fmod", (LEAST_64, -1), {}, "the least"),
]


@pytest.mark.parametrize("call", REFUSED, ids=[f"{i}-{call[0]}" for i, call in enumerate(REFUSED)])
def test_what_it_is_not_for_is_refused(
    call: tuple[str, tuple[Any, ...], dict[str, Any], str],
) -> None:
    name, args, kwargs, why = call
    with pytest.raises(RequestError, match=why):
        function_of(name, kwargs)(*args)


@pytest.mark.parametrize("index", [[torch.zeros(9).long()], [[0] * 9] * 9, [slice(None)], [None]])
def test_a_list_of_indices_is_of_whole_numbers(index: Any) -> None:
    """Of anything else torch makes several indices: it would pick more than was said."""
    with pytest.raises(RequestError, match="of whole numbers"):
        elements("operator.getitem", (X, index), {})


def test_whole_numbers_are_divided_else() -> None:
    for mode in ("trunc", "floor"):
        divide = function_of("torch.div", {"rounding_mode": mode})
        assert torch.equal(divide(I3, -1), torch.div(I3, -1, rounding_mode=mode))
        assert torch.equal(divide(LEAST_64, 3), torch.div(LEAST_64, 3, rounding_mode=mode))
        assert torch.equal(divide(LEAST_64, -1.0), torch.div(LEAST_64, -1.0, rounding_mode=mode))
    assert function_of("operator.mod", {})(7, 3) == 1


def test_a_power_of_whole_numbers_stays_small() -> None:
    assert function_of("operator.pow", {})(3, 3) == operator.pow(3, 3)
    with pytest.raises(OverflowError):
        function_of("operator.pow", {})(10, 10**9)


UNARY = sorted(
    name.partition(".")[2]
    for name, makes in OPERATIONS.items()
    if name.startswith("torch.") and makes in (Makes.EACH, Makes.SLOWLY)
)


@pytest.mark.parametrize("name", UNARY)
def test_a_function_and_its_method_are_one(name: str) -> None:
    if f"method.{name}" not in OPERATIONS:
        return
    results = []
    for prefix in ("torch", "method"):
        try:
            results.append(function_of(f"{prefix}.{name}", {})(P))
        except (TypeError, RuntimeError, RequestError):
            results.append(None)
    one, other = results
    assert (one is None) == (other is None)
    for ours, theirs in _pairs(one, other) if one is not None else []:
        assert torch.equal(ours, theirs) or torch.equal(ours.isnan(), theirs.isnan())
