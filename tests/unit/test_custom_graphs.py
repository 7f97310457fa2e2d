"""Custom graphs: what is taken, what is refused and in which words; nothing else ever comes out."""

import copy
import json
from collections.abc import Callable
from typing import Any

import custom_support
import pytest
from custom_support import SUM, by_hand, made, node, ref, told
from hypothesis import given
from hypothesis import strategies as st

from plait.core.custom_graphs import MAX_METRICS, MAX_NODES, dump, load, read
from plait.core.custom_ops import OPERATIONS, canonical
from plait.core.errors import RequestError

PPO = {"logprobs": 1, "sampled": 1, "advantages": 1}


def test_a_traced_loss_is_read() -> None:
    loss = made(custom_support.ppo, PPO)
    assert [(each.name, each.rank) for each in loss.inputs] == list(PPO.items())
    assert loss.places == tuple(PPO)
    assert loss.nodes[0].target == "operator.sub"
    assert loss.nodes[1].target == "torch.exp"
    assert set(loss.metrics) == {
        "custom/clip_fraction:mean",
        "custom/kl:mean",
        "custom/loss:sum",
    }


@pytest.mark.parametrize(
    ("function", "ranks"),
    [
        (custom_support.ppo, PPO),
        (custom_support.distillation, {"logprobs": 2, "teacher": 2, "temperature": 0}),
        (custom_support.sequence_level, {"logprobs": 1, "reference": 1, "sign": 0}),
    ],
)
def test_what_is_stored_is_the_loss(function: Callable[..., Any], ranks: dict[str, int]) -> None:
    loss = made(function, ranks)
    assert load(dump(loss)) == loss


def test_a_stored_loss_whose_operation_is_gone_is_the_clients_to_create_again() -> None:
    stored = dump(read(by_hand(SUM))).replace(b"method.sum", b"method.gone")
    with pytest.raises(RequestError, match="gone"):
        load(stored)


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        ("torch.exp", "torch.exp"),
        ("torch.nn.functional.relu", "functional.relu"),
        ("torch._C._nn.log_sigmoid", "functional.logsigmoid"),
        ("torch._C._nn.softplus", "functional.softplus"),
        ("torch._C._special.special_expm1", "special.expm1"),
        ("torch.functional.norm", "torch.norm"),
        ("operator.add", "operator.add"),
        ("math.sqrt", "math.sqrt"),
        ("getattr", "getattr"),
        ("torch.Tensor.exp", "method.exp"),
    ],
)
def test_functions_go_by_one_name(written: str, ours: str) -> None:
    assert canonical(written) == ours
    assert ours in OPERATIONS


@pytest.mark.parametrize(
    "written",
    [
        "os.system",
        "torch.load",
        "torch.save",
        "torch.rand_like",
        "torch.bincount",
        "torch.ops.aten.add",
        "torch.nn.functional.dropout",
        "torch.nn.functional.one_hot",
        "torch.utils.cpp_extension.load",
        "operator.setitem",
        "operator.iadd",
        "operator.attrgetter",
        "builtins.eval",
        "eval",
        "exp",
        "",
        "torch.",
        "torch.exp.__class__",
        "math.factorial",
    ],
)
def test_what_is_not_on_the_list_is_refused_by_name(written: str) -> None:
    assert canonical(written) is None
    with pytest.raises(RequestError, match="which is not on this server's list"):
        read(by_hand(node("a", written, ref("logprobs")), SUM))


METHODS = [
    "item",
    "numpy",
    "tolist",
    "backward",
    "add_",
    "__class__",
    "__reduce__",
    "apply_",
    "data",
]


@pytest.mark.parametrize("method", METHODS)
def test_no_method_leaves_torch_or_writes(method: str) -> None:
    with pytest.raises(RequestError, match="not on this server's list"):
        read(by_hand(node("a", method, ref("logprobs"), op="call_method"), SUM))


def _with(change: Callable[[Any], object]) -> Any:
    wrong = copy.deepcopy(by_hand(SUM))
    change(wrong)
    return wrong


def _nodes(change: Callable[[list[Any]], object]) -> Any:
    return _with(lambda told: change(told["graph"]["nodes"]))


def _value(value: Any) -> Any:
    return by_hand(node("a", "torch.add", ref("logprobs"), value), SUM)


def _returning(value: Any) -> Any:
    return _nodes(lambda nodes: nodes[-1].update(args=[value]))


WRONG: dict[str, tuple[Any, str]] = {
    "no name": (_with(lambda t: t.update(name="")), "has a name"),
    "no inputs": (_with(lambda t: t.update(inputs=[])), "list of 1 to 16"),
    "too many inputs": (_with(lambda t: t.update(inputs=t["inputs"] * 17)), "list of 1 to 16"),
    "inputs of no list": (_with(lambda t: t.update(inputs={})), "list of 1 to 16"),
    "an input twice": (_with(lambda t: t.update(inputs=t["inputs"] * 2)), "each once"),
    "an input of another name": (
        _with(lambda t: t["inputs"][0].update(name="p")),
        "must take logprobs first",
    ),
    "an input in capitals": (_with(lambda t: t["inputs"][0].update(name="P")), "lowercase"),
    "scalar log-probs": (_with(lambda t: t["inputs"][0].update(rank=0)), "of rank 0"),
    "a rank of 3": (_with(lambda t: t["inputs"][0].update(rank=3)), "of rank 3"),
    "a rank that is true": (_with(lambda t: t["inputs"][0].update(rank=True)), "of rank True"),
    "another format": (_with(lambda t: t["graph"].update(format=2)), "reads format 1"),
    "no graph": (_with(lambda t: t.update(graph=None)), "reads format 1"),
    "no nodes": (_nodes(list.clear), "has no nodes"),
    "nodes of no list": (_with(lambda t: t["graph"].update(nodes={})), "has no nodes"),
    "a node that is none": (_nodes(lambda n: n.insert(1, 5)), "a node named None"),
    "a node without a name": (_nodes(lambda n: n[1].pop("name")), "a node named None"),
    "a node's name that is code": (_nodes(lambda n: n[1].update(name="a; b")), "identifier"),
    "a node twice": (_nodes(lambda n: n.insert(1, n[1])), "two nodes named 'loss'"),
    "a node of no kind": (_nodes(lambda n: n[1].update(op="call")), "unknown kind 'call'"),
    "a captured tensor": (_nodes(lambda n: n[1].update(op="get_attr")), "captures a tensor"),
    "a module": (_nodes(lambda n: n[1].update(op="call_module")), "calls a module"),
    "no target": (_nodes(lambda n: n[1].update(target=None)), "without a target"),
    "arguments of no list": (_nodes(lambda n: n[1].update(args={})), "without a target"),
    "an input that is not taken": (_nodes(lambda n: n.pop(0)), "inputs first"),
    "an input that is not declared": (
        _nodes(lambda n: n.insert(1, {**n[0], "name": "b"})),
        "first",
    ),
    "an input late": (_nodes(lambda n: n.insert(2, {**n[0], "name": "b"})), "inputs first"),
    "an input of another": (_nodes(lambda n: n[0].update(target="q")), "declares logprobs"),
    "an input with a default": (_nodes(lambda n: n[0].update(args=[1])), "declares logprobs"),
    "no output": (_nodes(lambda n: n.pop()), "end in its one output"),
    "an output before the end": (_nodes(lambda n: n.insert(1, n[-1])), "end in its one output"),
    "a method of nothing": (_nodes(lambda n: n[1].update(args=[])), "the method 'sum' of nothing"),
    "a method of a number": (
        _nodes(lambda n: n[1].update(args=[1])),
        "the method 'sum' of nothing",
    ),
    "what comes later": (_value(ref("loss")), "'loss', no earlier node"),
    "itself": (_value(ref("a")), "'a', no earlier node"),
    "a reference to a number": (_value({"ref": 1}), "no earlier node"),
    "a text": (_value("os"), "the text 'os'"),
    "a large number": (_value(2**63), "64 bits"),
    "a whole number as large as a float": (_value(10**30), "64 bits"),
    "no number": (_value(float("nan")), "64 bits"),
    "an object of two keys": (_value({"ref": "logprobs", "tuple": []}), "no value"),
    "an unknown object": (_value({"code": "1"}), "'code'"),
    "a dictionary": (_value({"dict": {}}), "'dict'"),
    "a slice of two": (_value({"slice": [1, 2]}), "'slice'"),
    "another float": (_value({"float": "1e5"}), "'float'"),
    "a complex type": (_value({"dtype": "complex64"}), "'dtype'"),
    "another device": (_value({"device": "cuda"}), "'device'"),
    "a layout": (_value({"layout": "strided"}), "'layout'"),
    "arguments too deep": (_value([[[[[[[[1]]]]]]]]), "too deep"),
    "too many arguments": (_value([1] * 257), "too many"),
    "an option that writes": (
        by_hand(node("a", "torch.exp", ref("logprobs"), out=ref("logprobs")), SUM),
        "the option 'out'",
    ),
    "an option that is a sentence": (
        by_hand(node("a", "torch.exp", ref("logprobs"), **{"can't allocate memory": 1}), SUM),
        '"can\'t allocate memory"',
    ),
    "an attribute that is none of these": (
        by_hand(node("a", "getattr", ref("logprobs"), "__class__"), SUM),
        "the attribute '__class__'",
    ),
    "an attribute of a number": (by_hand(node("a", "getattr", 1, "shape"), SUM), "of nothing"),
    "an attribute with a default": (
        by_hand(node("a", "getattr", ref("logprobs"), "shape", 1), SUM),
        "of nothing",
    ),
    "a loss alone": (_returning(ref("loss")), "must return (loss, metrics)"),
    "a loss that is a number": (_returning({"tuple": [1.0, {"dict": {}}]}), "must return"),
    "a loss of nobody": (_returning({"tuple": [ref("x"), {"dict": {}}]}), "must return"),
    "metrics of no dictionary": (_returning({"tuple": [ref("loss"), []]}), "must return"),
    "metrics of another name": (by_hand(SUM, metrics={"kl": "loss"}), "'kl'"),
    "metrics in capitals": (by_hand(SUM, metrics={"custom/KL:sum": "loss"}), "lowercase"),
    "metrics of another sum": (by_hand(SUM, metrics={"custom/kl:max": "loss"}), "custom/NAME:sum"),
    "metrics of nobody": (by_hand(SUM, metrics={"custom/kl:sum": "x"}), "is no node"),
    "too many metrics": (
        by_hand(SUM, metrics={f"custom/{i}:sum": "loss" for i in range(MAX_METRICS + 1)}),
        "65 metrics",
    ),
    "a loss of nothing learned": (
        by_hand(node("shape", "getattr", ref("logprobs"), "shape"), loss="shape")
        | {"graph": custom_support.graph(node("loss", "math.sqrt", 2.0))},
        "does not depend on its log-probs",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_graph_that_is_wrong_is_refused_in_one_line(case: str) -> None:
    told, why = WRONG[case]
    with pytest.raises(RequestError) as refused:
        read(told)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_mask_may_be_filled_with_the_least_float() -> None:
    least = -3.4028234663852886e38
    assert read(_value(least)).nodes[0].args[1] == least


def test_there_are_so_many_nodes_at_most() -> None:
    chain = [node("n0", "torch.exp", ref("logprobs"))]
    chain += [node(f"n{i}", "torch.exp", ref(f"n{i - 1}")) for i in range(1, MAX_NODES - 1)]
    last = {**SUM, "args": [ref(chain[-1]["name"])]}
    assert len(read(by_hand(*chain, last)).nodes) == MAX_NODES
    one_more = node("more", "torch.exp", ref("logprobs"))
    with pytest.raises(RequestError, match=f"more than {MAX_NODES} nodes"):
        read(by_hand(one_more, *chain, last))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["op", "name", "target", "args", "kwargs", "ref", "tuple", "slice", "dict", "inputs", "graph"]
)


def _places(told: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        told.items()
        if isinstance(told, dict)
        else enumerate(told)
        if isinstance(told, list)
        else ()
    )
    return [at, *(place for key, value in inner for place in _places(value, (*at, key)))]


@given(st.data())
def test_whatever_comes_is_read_or_refused(data: st.DataObject) -> None:
    whole = json.loads(json.dumps(told(custom_support.ppo, PPO)))
    for _ in range(data.draw(st.integers(1, 3))):
        *way, last = data.draw(st.sampled_from(_places(whole)[1:]))
        where = whole
        for key in way:
            where = where[key]
        match data.draw(st.sampled_from(["put", "drop", "add"])):
            case "put":
                where[last] = data.draw(JSON)
            case "drop":
                del where[last]
            case "add" if isinstance(where, dict):
                where[data.draw(KEYS)] = data.draw(JSON)
            case "add":
                where.insert(last, data.draw(JSON))
    try:
        loss = read(whole)
    except RequestError:
        return
    assert load(dump(loss)) == loss


@given(JSON, JSON)
def test_what_is_no_graph_at_all_is_refused(inputs: Any, graph: Any) -> None:
    with pytest.raises(RequestError):
        read({"name": "x", "inputs": inputs, "graph": graph})
