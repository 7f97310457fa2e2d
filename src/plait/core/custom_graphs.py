"""Custom graphs: reads a client's own loss and checks it, node by node.

``read`` is the one way in, for what a client sends and, through ``load``, for what was stored (by
this version or another). RequestError says in one line what is wrong; there is no other error.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from math import isfinite
from typing import Any

from plait.core.custom_losses import LOGPROBS, CustomLoss, Input, Node
from plait.core.custom_ops import (
    ATTRIBUTES,
    DTYPES,
    GETATTR,
    REFUSED_OPTIONS,
    TEXTS,
    canonical,
)
from plait.core.errors import RequestError

MAX_BYTES = 128 * 1024
"""Of one, stored: several times one of ``MAX_NODES``."""
MAX_NODES = 256
"""An interpreted node takes some 30 µs, its gradient included; a PPO with metrics has 30."""
MAX_INPUTS = 16
MAX_METRICS = 64
MAX_ITEMS = 256
"""Of one list of arguments."""
MAX_DEPTH = 6
MAX_NAME = 200
_INPUT = re.compile(r"[a-z_][a-z0-9_]{0,63}")
_NODE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_METRIC = re.compile(r"custom/[a-z0-9_./-]{1,64}:(sum|mean)")
_NO_NUMBER = ("inf", "-inf", "nan")
_HINTS = {
    "get_attr": "captures a tensor: read it from loss_fn_inputs instead",
    "call_module": "calls a module: use functions of torch instead",
}


def read(told: Mapping[str, Any]) -> CustomLoss:
    """A loss from ``name``, ``inputs`` and ``graph`` as clients send them; RequestError."""
    name = told.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise RequestError(f"a custom loss has a name of 1 to {MAX_NAME} characters")
    return _Reader(name).read(told.get("inputs"), told.get("graph"))


def dump(loss: CustomLoss) -> bytes:
    """A loss as it is stored."""
    return json.dumps(asdict(loss), allow_nan=False, separators=(",", ":")).encode()


def load(stored: bytes) -> CustomLoss:
    """What ``dump`` wrote, of this version or another; RequestError if it is no loss any more."""
    told = json.loads(stored)
    names = [each["name"] for each in told["inputs"]]
    nodes: list[dict[str, Any]] = [
        {"op": "placeholder", "name": place, "target": name, "args": [], "kwargs": {}}
        for place, name in zip(told["places"], names, strict=True)
    ]
    for node in told["nodes"]:
        prefix, _, rest = node["target"].partition(".")
        op = "call_method" if prefix == "method" else "call_function"
        nodes.append({**node, "op": op, "target": _written(prefix, rest)})
    metrics = {key: {"ref": value} for key, value in told["metrics"].items()}
    result = {"tuple": [{"ref": told["loss"]}, {"dict": metrics}]}
    nodes.append({"op": "output", "name": "output", "target": "output", "args": [result]})
    return read({**told, "graph": {"format": 1, "nodes": nodes}})


def _written(prefix: str, rest: str) -> str:
    """An operation as graphs write it."""
    written = {"functional": "torch.nn.functional.", "special": "torch.special.", "method": ""}
    return (written.get(prefix, f"{prefix}.") + rest) if rest else prefix


class _Reader:
    """Reads one loss."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: dict[str, bool] = {}
        """Of each node so far: whether it depends on the log-probs."""

    def read(self, inputs: Any, graph: Any) -> CustomLoss:
        given = tuple(self._inputs(inputs))
        nodes = self._raw_nodes(graph)
        places, found = [], []
        for i, node in enumerate(nodes[:-1]):
            op, name = node["op"], node["name"]
            if name in self._known:
                raise self._error(f"has two nodes named {name!r}")
            if (op == "placeholder") != (i < len(given)):
                raise self._error("must take its inputs first, each once")
            if op == "placeholder":
                if node["target"] != given[i].name or node["args"] or node["kwargs"]:
                    raise self._error(f"takes {node['target']!r:.80}, but declares {given[i].name}")
                places.append(name)
                self._known[name] = i == 0
            else:
                found.append(self._node(node))
        if len(places) < len(given):
            raise self._error(f"does not take its input {given[len(places)].name}")
        loss, metrics = self._output(nodes[-1])
        return CustomLoss(
            name=self._name,
            inputs=given,
            nodes=tuple(found),
            places=tuple(places),
            loss=loss,
            metrics=metrics,
        )

    def _inputs(self, told: Any) -> Iterator[Input]:
        if not isinstance(told, list) or not 0 < len(told) <= MAX_INPUTS:
            raise self._error(f"has inputs other than a list of 1 to {MAX_INPUTS}")
        seen: set[str] = set()
        for i, each in enumerate(told):
            name = each.get("name") if isinstance(each, dict) else None
            rank = each.get("rank") if isinstance(each, dict) else None
            if not isinstance(name, str) or not _INPUT.fullmatch(name) or name in seen:
                raise self._error(f"has an input {name!r:.80}: give names in lowercase, each once")
            if type(rank) is not int or not (i == 0) <= rank <= 2:
                raise self._error(f"has the input {name} of rank {rank!r:.20}: give 0, 1 or 2")
            seen.add(name)
            yield Input(name=name, rank=rank)
        if told[0]["name"] != LOGPROBS:
            raise self._error(f"must take {LOGPROBS} first")

    def _raw_nodes(self, graph: Any) -> list[dict[str, Any]]:
        if not isinstance(graph, dict) or graph.get("format") != 1:
            raise self._error("has a graph of an unknown format: this server reads format 1")
        nodes = graph.get("nodes")
        if not isinstance(nodes, list) or not nodes:
            raise self._error("has no nodes")
        if len(nodes) > MAX_NODES + MAX_INPUTS + 1:
            raise self._error(f"has {len(nodes)} nodes: at most {MAX_NODES}")
        read = [self._raw_node(node) for node in nodes]
        if [i for i, node in enumerate(read) if node["op"] == "output"] != [len(read) - 1]:
            raise self._error("must end in its one output")
        if len(nodes) - 1 > MAX_NODES + sum(node["op"] == "placeholder" for node in read):
            raise self._error(f"has more than {MAX_NODES} nodes")
        return read

    def _raw_node(self, node: Any) -> dict[str, Any]:
        told = node if isinstance(node, dict) else {}
        op, name, target = (told.get(key) for key in ("op", "name", "target"))
        args, kwargs = told.get("args", []), told.get("kwargs", {})
        if not isinstance(name, str) or not _NODE.fullmatch(name):
            raise self._error(f"has a node named {name!r:.80}: give an identifier")
        if not isinstance(op, str):
            op = ""
        if op in _HINTS:
            raise self._error(_HINTS[op])
        if op not in ("placeholder", "call_function", "call_method", "output"):
            raise self._error(f"has the node {name} of an unknown kind {op!r:.40}")
        if (
            not isinstance(target, str)
            or not isinstance(args, list)
            or not isinstance(kwargs, dict)
        ):
            raise self._error(f"has the node {name} without a target, arguments or keywords")
        return {"op": op, "name": name, "target": target, "args": args, "kwargs": kwargs}

    def _node(self, node: dict[str, Any]) -> Node:
        name, target = node["name"], node["target"]
        is_method = node["op"] == "call_method"
        ours = canonical(f"torch.Tensor.{target}" if is_method else target)
        if ours is None:
            kind = "method" if is_method else "function"
            raise self._error(
                f"uses the {kind} {target!r:.80}, which is not on this server's list "
                "(docs/guide/losses.md)"
            )
        refs: list[str] = []
        if ours == GETATTR:
            self._getattr(node, refs)
        else:
            self._values(name, node["args"], refs, 0)
            for key, value in node["kwargs"].items():
                if key in REFUSED_OPTIONS or not _NODE.fullmatch(key):
                    raise self._error(f"gives {ours} the option {key!r:.80}, which is not taken")
                self._value(name, value, refs, 0)
        of_one = node["args"] and _ref(node["args"][0]) is not None
        if ours.startswith("method.") and not of_one:
            raise self._error(f"calls the method {target!r:.80} of nothing")
        self._known[name] = any(self._known[ref] for ref in refs)
        return Node(name=name, target=ours, args=node["args"], kwargs=node["kwargs"])

    def _getattr(self, node: dict[str, Any], refs: list[str]) -> None:
        args = node["args"]
        if len(args) != 2 or node["kwargs"] or _ref(args[0]) is None:
            raise self._error(f"has the node {node['name']}, an attribute of nothing")
        self._value(node["name"], args[0], refs, 0)
        if not isinstance(args[1], str) or args[1] not in ATTRIBUTES:
            raise self._error(
                f"reads the attribute {args[1]!r:.80}; there are {', '.join(ATTRIBUTES)}"
            )

    def _values(self, node: str, told: Any, refs: list[str], depth: int) -> None:
        if not isinstance(told, list) or len(told) > MAX_ITEMS or depth > MAX_DEPTH:
            raise self._error(f"has arguments of the node {node} that are too many or too deep")
        for each in told:
            self._value(node, each, refs, depth + 1)

    def _value(self, node: str, told: Any, refs: list[str], depth: int) -> None:
        if told is None:
            return
        if isinstance(told, int | float):
            fits = -(2**63) <= told < 2**63 if isinstance(told, int) else isfinite(told)
            if not fits:
                raise self._error(f"has a number in the node {node} that 64 bits do not hold")
            return
        if isinstance(told, str):
            if told not in TEXTS:
                raise self._error(
                    f"gives the node {node} the text {told!r:.80}, which nothing takes"
                )
            return
        if isinstance(told, list):
            return self._values(node, told, refs, depth)
        if not isinstance(told, dict) or len(told) != 1:
            raise self._error(f"has an argument of the node {node} that is no value")
        ((kind, inner),) = told.items()
        match kind, inner:
            case "ref", str() if inner in self._known:
                refs.append(inner)
            case "ref", _:
                raise self._error(f"refers in the node {node} to {inner!r:.80}, no earlier node")
            case "tuple", _:
                self._values(node, inner, refs, depth)
            case "slice", [_, _, _]:
                self._values(node, inner, refs, depth)
            case "ellipsis", True:
                pass
            case "float", str() if inner in _NO_NUMBER:
                pass
            case "dtype", str() if inner in DTYPES:
                pass
            case "device", str() if inner == "cpu":
                pass
            case _:
                raise self._error(
                    f"has the argument {kind!r:.40}: {inner!r:.40} of the node {node}, which is "
                    "not taken"
                )

    def _output(self, node: dict[str, Any]) -> tuple[str, dict[str, str]]:
        wanted = self._error("must return (loss, metrics): a node and a dictionary of nodes")
        if len(node["args"]) != 1 or node["kwargs"]:
            raise wanted
        told = node["args"][0]
        both = told.get("tuple") if isinstance(told, dict) and len(told) == 1 else told
        if not isinstance(both, list) or len(both) != 2:
            raise wanted
        loss, held = _ref(both[0]), both[1]
        metrics = held.get("dict") if isinstance(held, dict) and len(held) == 1 else None
        if loss not in self._known or loss is None or not isinstance(metrics, dict):
            raise wanted
        if not self._known[loss]:
            raise self._error("does not depend on its log-probs: nothing can be learned from it")
        if len(metrics) > MAX_METRICS:
            raise self._error(f"has {len(metrics)} metrics: at most {MAX_METRICS}")
        out: dict[str, str] = {}
        for key, value in metrics.items():
            if not isinstance(key, str) or not _METRIC.fullmatch(key):
                raise self._error(
                    f"has the metric {key!r:.80}: name it custom/NAME:sum or custom/NAME:mean, "
                    "in lowercase"
                )
            ref = _ref(value)
            if ref is None or ref not in self._known:
                raise self._error(f"has the metric {key}, which is no node")
            out[key] = ref
        return loss, out

    def _error(self, why: str) -> RequestError:
        return RequestError(f"custom loss {self._name!r:.80} {why}")


def _ref(told: Any) -> str | None:
    """The node that an argument refers to, if it is one."""
    if isinstance(told, dict) and len(told) == 1 and isinstance(told.get("ref"), str):
        return str(told["ref"])
    return None
