"""Custom losses of one datum: value, slopes and metrics are autograd's own; what cannot be carried
out is one clear error, and takes neither memory nor time.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import custom_support
import pytest
import torch
from custom_support import SUM, by_hand, made, node, ref
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.custom_graphs import read
from plait.core.custom_losses import CustomLoss
from plait.core.custom_ops import OPERATIONS
from plait.core.errors import NotFinite, PlaitError, RequestError
from plait.core.operations import Datum
from plait.engines.torch.custom.evaluate import ITEM_BYTES, NODE_BYTES, Evaluated, evaluate
from plait.engines.torch.custom.own import DATUM_BYTES, REQUEST_BYTES, own_parts

T, K = 6, 3
LOGPROBS = -torch.rand(T, generator=torch.Generator().manual_seed(1)) - 0.1
SAMPLED = LOGPROBS + torch.tensor([0.4, -0.3, 0.0, 0.1, -0.5, 0.2])
ADVANTAGES = torch.tensor([1.0, -2.0, 0.5, 1.5, -1.0, 2.0])
SOFT = -torch.rand(T, K, generator=torch.Generator().manual_seed(2)) - 0.1
TEACHER = torch.randn(T, K, generator=torch.Generator().manual_seed(3))
CASES: dict[str, tuple[Callable[..., Any], dict[str, torch.Tensor]]] = {
    "ppo": (
        custom_support.ppo,
        {"logprobs": LOGPROBS, "sampled": SAMPLED, "advantages": ADVANTAGES},
    ),
    "distillation": (
        custom_support.distillation,
        {"logprobs": SOFT, "teacher": TEACHER, "temperature": torch.tensor(2.0)},
    ),
    "sequence_level": (
        custom_support.sequence_level,
        {"logprobs": LOGPROBS, "reference": SAMPLED, "sign": torch.tensor(-1.0)},
    ),
}


def evaluated(
    loss: CustomLoss, logprobs: torch.Tensor = LOGPROBS, allowance: int = DATUM_BYTES, **inputs: Any
) -> Evaluated:
    return evaluate(loss, logprobs, inputs, allowance)


def of(*nodes: Any, **ends: Any) -> CustomLoss:
    return read(by_hand(*nodes, **ends))


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_python_and_autograd_make(case: str) -> None:
    function, inputs = CASES[case]
    loss = made(function, {name: value.ndim for name, value in inputs.items()})
    leaf = inputs["logprobs"].clone().requires_grad_()
    want, metrics = function(*({**inputs, "logprobs": leaf}.values()))
    want.backward()
    got = evaluate(loss, inputs["logprobs"], inputs, DATUM_BYTES)
    assert got.loss == float(want.detach())
    assert torch.equal(got.slopes, leaf.grad)
    assert got.metrics == {key: float(value.detach()) for key, value in metrics.items()}


def test_the_clients_data_stay_as_they_are() -> None:
    inputs = {name: value.clone() for name, value in CASES["ppo"][1].items()}
    loss = made(CASES["ppo"][0], dict.fromkeys(inputs, 1))
    evaluate(loss, inputs["logprobs"], inputs, DATUM_BYTES)
    for name, value in CASES["ppo"][1].items():
        assert torch.equal(inputs[name], value)
    assert not inputs["logprobs"].requires_grad


def test_sums_do_not_depend_on_the_number_of_threads() -> None:
    many = -5 * torch.rand(300_000, generator=torch.Generator().manual_seed(0))
    loss = of(SUM)
    before, found = torch.get_num_threads(), []
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            found.append(evaluated(loss, many))
            assert torch.get_num_threads() == n, "it is put back"
    finally:
        torch.set_num_threads(before)
    assert found[0].loss == found[1].loss


def test_a_metric_may_be_no_number_and_a_size() -> None:
    metrics = {"custom/none:mean": "none", "custom/n:sum": "n", "custom/any:sum": "any"}
    loss = of(
        SUM,
        node("empty", "operator.getitem", ref("logprobs"), {"slice": [0, 0, None]}),
        node("none", "torch.mean", ref("empty")),
        node("n", "size", ref("logprobs"), 0, op="call_method"),
        node("any", "any", ref("logprobs"), op="call_method"),
        metrics=metrics,
    )
    found = evaluated(loss).metrics
    assert found["custom/none:mean"] != found["custom/none:mean"]
    assert (found["custom/n:sum"], found["custom/any:sum"]) == (T, 1.0)


def shifted(target: str, *args: Any, **kwargs: Any) -> list[Any]:
    """A node by hand, and a loss behind it."""
    return [node("a", target, *args, **kwargs), node("loss", "torch.sum", ref("a"))]


WRONG: dict[str, tuple[list[Any], type[PlaitError], str]] = {
    "not one number": (
        [node("loss", "torch.exp", ref("logprobs"))],
        RequestError,
        r"one number, not what is of shape \(6,\)",
    ),
    "whole numbers": (
        [node("loss", "torch.argmax", ref("logprobs"))],
        RequestError,
        "must return one number",
    ),
    "no tensor": (
        [node("loss", "size", ref("logprobs"), 0, op="call_method")],
        RequestError,
        "no tensor",
    ),
    "no gradient": (
        [node("a", "torch.detach", ref("logprobs")), node("loss", "torch.sum", ref("a"))],
        RequestError,
        "no gradient",
    ),
    "not finite": (
        shifted("operator.truediv", ref("logprobs"), 0.0),
        NotFinite,
        "is not finite",
    ),
    "not finite as fp32": (
        [
            node("wide", "double", ref("logprobs"), op="call_method"),
            node("sum", "torch.sum", ref("wide")),
            node("loss", "torch.add", ref("sum"), 1e300),
        ],
        NotFinite,
        "is not finite",
    ),
    "a slope that is not finite": (
        [
            node("a", "operator.sub", ref("logprobs"), ref("logprobs")),
            node("b", "torch.sqrt", ref("a")),
            node("loss", "torch.sum", ref("b")),
        ],
        NotFinite,
        "a slope that is not finite",
    ),
    "shapes that do not go together": (
        [
            node("a", "operator.getitem", ref("logprobs"), {"slice": [1, None, None]}),
            node("b", "operator.add", ref("a"), ref("logprobs")),
            node("loss", "torch.sum", ref("b")),
        ],
        RequestError,
        r"b \(operator.add\): The size of tensor",
    ),
    "an index out of range": (
        shifted("operator.getitem", ref("logprobs"), 99),
        RequestError,
        "out of (bounds|range)",
    ),
    "another number of arguments": (shifted("torch.exp", ref("logprobs"), 1), RequestError, "exp"),
    "an option that is none": (
        shifted("torch.exp", ref("logprobs"), dim=1),
        RequestError,
        r"a \(torch.exp\): ",
    ),
    "a division by zero": (
        [
            node("n", "size", ref("logprobs"), 0, op="call_method"),
            node("z", "operator.sub", ref("n"), ref("n")),
            node("q", "operator.truediv", ref("n"), ref("z")),
            *shifted("operator.mul", ref("logprobs"), ref("q")),
        ],
        RequestError,
        "division by zero",
    ),
    "a number without end": (
        [
            node("n", "size", ref("logprobs"), 0, op="call_method"),
            *[
                node(f"n{i}", "operator.mul", ref(f"n{i - 1}" if i else "n"), 2**40)
                for i in range(3)
            ],
            *shifted("operator.mul", ref("logprobs"), ref("n2")),
        ],
        RequestError,
        "which is no value",
    ),
    "a complex number": (
        [
            node("n", "size", ref("logprobs"), 0, op="call_method"),
            node("m", "operator.neg", ref("n")),
            node("c", "operator.pow", ref("m"), 0.5),
            *shifted("operator.mul", ref("logprobs"), ref("c")),
        ],
        RequestError,
        "gives a complex",
    ),
    "many dimensions": (
        [
            node("a", "reshape", ref("logprobs"), 1, 1, 1, 1, -1, op="call_method"),
            node("loss", "torch.sum", ref("a")),
        ],
        RequestError,
        "more than 4 dimensions",
    ),
    "a metric of several": ([SUM], RequestError, "metric custom/x:sum must be one number"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_carried_out_is_one_clear_error(case: str) -> None:
    nodes, kind, why = WRONG[case]
    metrics = {"custom/x:sum": "logprobs"} if "several" in case else {}
    with pytest.raises(kind, match=why) as found:
        evaluated(of(*nodes, metrics=metrics))
    assert str(found.value).startswith("custom loss 'mine'")
    assert "\n" not in str(found.value)


GREEDY: dict[str, list[Any]] = {
    "expand": shifted("expand", ref("logprobs"), 10**9, T, op="call_method"),
    "repeat": shifted("repeat", ref("logprobs"), 10**9, op="call_method"),
    "new_ones": [
        node("a", "new_ones", ref("logprobs"), 2**40, op="call_method"),
        node("b", "torch.sum", ref("a")),
        node("c", "torch.sum", ref("logprobs")),
        node("loss", "operator.mul", ref("b"), ref("c")),
    ],
    "pad": shifted("torch.nn.functional.pad", ref("logprobs"), [0, 10**10]),
    "doubling": [
        *[
            node(f"n{i}", "torch.cat", [ref(f"n{i - 1}" if i else "logprobs")] * 16)
            for i in range(8)
        ],
        node("loss", "torch.sum", ref("n7")),
    ],
    "outer of outer": [
        node("n0", "torch.outer", ref("logprobs"), ref("logprobs")),
        *[
            x
            for i in range(1, 5)
            for x in (
                node(f"f{i}", "torch.flatten", ref(f"n{i - 1}")),
                node(f"n{i}", "torch.outer", ref(f"f{i}"), ref(f"f{i}")),
            )
        ],
        node("loss", "torch.sum", ref("n4")),
    ],
    "nothing in a large shape": [
        node("empty", "operator.getitem", ref("logprobs"), {"slice": [0, 0, None]}),
        node("a", "reshape", ref("empty"), 10**9, 0, op="call_method"),
        SUM,
    ],
    "the items of one large value": [
        node("w", "repeat", ref("logprobs"), 10**6, op="call_method"),
        *[node(f"n{i}", "operator.getitem", ref("w"), i) for i in range(3)],
        node("loss", "torch.add", ref("n0"), ref("n1")),
    ],
    "broadcast inside a reduction": [
        node("w", "repeat", ref("logprobs"), 5000, op="call_method"),
        node("c", "unsqueeze", ref("w"), 1, op="call_method"),
        node("loss", "torch.nn.functional.mse_loss", ref("c"), ref("w"), reduction="sum"),
    ],
}


@pytest.mark.parametrize("case", GREEDY)
def test_what_would_be_too_large_is_not_begun(case: str) -> None:
    began = time.perf_counter()
    with pytest.raises(RequestError, match="too large for one datum"):
        evaluated(of(*GREEDY[case]))
    assert time.perf_counter() - began < 2.0


def test_the_most_that_is_allowed_is_over_soon() -> None:
    """Every node is as large as all of them may be: the slowest that passes the bounds."""
    n, nodes = 64, [node("n0", "torch.exp", ref("logprobs"))]
    nodes += [node(f"n{i}", "torch.sigmoid", ref(f"n{i - 1}")) for i in range(1, n)]
    nodes.append(node("loss", "torch.sum", ref(f"n{n - 1}")))
    many = -torch.rand(DATUM_BYTES // 4 // (n + 1))
    began = time.perf_counter()
    evaluated(of(*nodes), many)
    assert time.perf_counter() - began < 5.0
    with pytest.raises(RequestError, match="too large"):
        evaluated(of(*nodes), torch.cat([many, many]))


def test_many_nodes_count_too() -> None:
    nodes = [node("n0", "torch.exp", ref("logprobs")), node("loss", "torch.sum", ref("n0"))]
    evaluated(of(*nodes), allowance=2 * NODE_BYTES)
    with pytest.raises(RequestError, match="too large"):
        evaluated(of(*nodes), allowance=2 * NODE_BYTES - 1)


def test_many_arguments_count_too() -> None:
    nodes = [
        node("n0", "operator.getitem", ref("logprobs"), [0] * 200),
        node("loss", "torch.sum", ref("n0")),
    ]
    evaluated(of(*nodes), allowance=2 * NODE_BYTES + 200 * ITEM_BYTES)
    with pytest.raises(RequestError, match="too large"):
        evaluated(of(*nodes), allowance=2 * NODE_BYTES + 200 * ITEM_BYTES - 1)


def datum(n: int = 4, **inputs: Any) -> Datum:
    return Datum(input_tokens=[1] * n, target_tokens=[2] * n, mask=[True] * n, inputs=inputs)


READS = {"logprobs": 1, "weights": 1, "target_tokens": 1, "beta": 0}


def reads(logprobs, weights, target_tokens, beta):
    loss = (logprobs * weights * beta * (target_tokens == 2)).sum()
    return loss, {}


def test_inputs_are_those_that_the_loss_names() -> None:
    loss = made(reads, READS)
    (own,) = own_parts(loss, [datum(weights=[1.0] * 4, beta=[0.5], others=[1.0])])
    assert own.inputs.keys() == {"weights", "target_tokens", "beta"}
    assert (own.inputs["beta"].shape, own.inputs["beta"].dtype) == ((), torch.float32)
    assert own.inputs["target_tokens"].dtype == torch.int64
    assert evaluate(loss, LOGPROBS[:4], own.inputs, own.allowance).loss == pytest.approx(
        0.5 * float(LOGPROBS[:4].sum())
    )


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"beta": [1.0]}, "datum 0 has no weights"),
        ({"weights": [[1.0]] * 4, "beta": [1.0]}, r"weights has the shape \(4, 1\)"),
        ({"weights": [1.0] * 4, "beta": [1.0, 2.0]}, "beta has the shape"),
        ({"weights": [], "beta": [1.0]}, "weights has the shape"),
        ({"weights": ["a"] * 4, "beta": [1.0]}, "weights must be numbers"),
        ({"weights": [[1.0], [1.0, 2.0]], "beta": [1.0]}, "weights must be numbers"),
    ],
)
def test_inputs_that_are_not_as_declared_are_refused(inputs: Mapping[str, Any], why: str) -> None:
    with pytest.raises(RequestError, match=why):
        own_parts(made(reads, READS), [datum(**inputs)])


def test_log_probs_are_of_the_declared_rank_and_there_are_some() -> None:
    soft = of(*[{**SUM}], rank=2)
    with pytest.raises(RequestError, match="target_tokens of rank 1"):
        own_parts(soft, [datum()])
    with pytest.raises(RequestError, match="no scored position"):
        own_parts(of(SUM), [Datum(input_tokens=[1], target_tokens=[2], mask=[False], inputs={})])


def test_what_all_may_have_is_divided_by_their_sizes() -> None:
    few = own_parts(of(SUM), [datum(4), datum(12)])
    assert [own.allowance for own in few] == [DATUM_BYTES, DATUM_BYTES]
    many = own_parts(of(SUM), [datum(1)] * 99 + [datum(4)])
    assert sum(own.allowance for own in many) <= REQUEST_BYTES
    assert many[-1].allowance == min(DATUM_BYTES, 4 * REQUEST_BYTES // 103)


VALUES = st.one_of(
    st.integers(-3, 3),
    st.floats(-2, 2),
    st.booleans(),
    st.none(),
    st.sampled_from([{"ellipsis": True}, {"dtype": "float64"}, "sum", {"float": "inf"}]),
    st.builds(lambda a, b: {"slice": [a, b, None]}, st.integers(-3, 3), st.integers(-3, 3)),
)


@pytest.mark.filterwarnings("ignore")  # of torch, about arguments that make little sense
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_graph_of_listed_operations_ends_in_numbers_or_one_error(data: st.DataObject) -> None:
    names, nodes = ["logprobs"], []
    for i in range(data.draw(st.integers(1, 5))):
        target = data.draw(st.sampled_from(sorted(OPERATIONS)))
        refs = st.sampled_from(names).map(ref)
        value = st.one_of(refs, refs, VALUES)
        args = [ref(data.draw(st.sampled_from(names))), *data.draw(st.lists(value, max_size=3))]
        if data.draw(st.booleans()):
            args = [{"tuple": args}] if data.draw(st.booleans()) else [args]
        prefix, _, rest = target.partition(".")
        is_method = prefix == "method"
        written = {"functional": "torch.nn.functional.", "special": "torch.special."}
        if target == "getattr":
            args = [ref(names[-1]), data.draw(st.sampled_from(["shape", "T", "dtype", "values"]))]
            full = target
        else:
            full = rest if is_method else written.get(prefix, f"{prefix}.") + rest
        op = "call_method" if is_method else "call_function"
        nodes.append({"op": op, "name": f"n{i}", "target": full, "args": args, "kwargs": {}})
        names.append(f"n{i}")
    nodes.append(node("loss", "torch.sum", ref(names[-1])))
    try:
        loss = read(by_hand(*nodes))
        found = evaluated(loss, allowance=2**22)
    except (RequestError, NotFinite):
        return
    assert torch.isfinite(found.slopes).all()
