"""Custom losses for tests: graphs as the Tinker SDK writes them, from Python functions.

The SDK is no part of plait's environment; ``graph_of`` writes what its ``encode_graph`` does (the
tests of ``compat`` hold the two against each other).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from plait.core import custom_graphs
from plait.core.custom_losses import CustomLoss


def graph_of(function: Callable[..., Any]) -> dict[str, Any]:
    """A traced function as data."""
    import torch.fx
    from torch.fx.node import _get_qualified_name

    nodes = []
    for node in torch.fx.symbolic_trace(function).graph.nodes:
        target = str(node.target)
        if node.op == "call_function":
            target = _get_qualified_name(node.target).replace("_operator.", "operator.")
        nodes.append(
            {
                "op": node.op,
                "name": node.name,
                "target": target,
                "args": [_encoded(arg) for arg in node.args],
                "kwargs": {key: _encoded(arg) for key, arg in node.kwargs.items()},
            }
        )
    return {"format": 1, "nodes": nodes}


def _encoded(arg: Any) -> Any:
    import torch

    match arg:
        case torch.fx.Node():
            return {"ref": arg.name}
        case float() if not math.isfinite(arg):
            return {"float": str(arg)}
        case None | bool() | int() | float() | str():
            return arg
        case list():
            return [_encoded(a) for a in arg]
        case tuple():
            return {"tuple": [_encoded(a) for a in arg]}
        case dict():
            return {"dict": {key: _encoded(a) for key, a in arg.items()}}
        case slice():
            return {"slice": [_encoded(a) for a in (arg.start, arg.stop, arg.step)]}
        case torch.dtype():
            return {"dtype": str(arg).removeprefix("torch.")}
        case torch.device():
            return {"device": str(arg)}
    assert arg is ..., arg
    return {"ellipsis": True}


def told(function: Callable[..., Any], ranks: Mapping[str, int], name: str = "mine") -> Any:
    """What a client says of a loss."""
    inputs = [{"name": key, "rank": rank} for key, rank in ranks.items()]
    return {"name": name, "inputs": inputs, "graph": graph_of(function)}


def made(function: Callable[..., Any], ranks: Mapping[str, int], name: str = "mine") -> CustomLoss:
    """A checked loss."""
    return custom_graphs.read(told(function, ranks, name))


def node(name: str, target: str, *args: Any, op: str = "call_function", **kwargs: Any) -> Any:
    """A node by hand."""
    return {"op": op, "name": name, "target": target, "args": list(args), "kwargs": kwargs}


def ref(name: str) -> dict[str, str]:
    return {"ref": name}


def graph(*nodes: Any, loss: str = "loss", metrics: Mapping[str, str] | None = None) -> Any:
    """A graph of ``logprobs`` by hand, with its ends."""
    held = {key: ref(value) for key, value in (metrics or {}).items()}
    result = {"tuple": [ref(loss), {"dict": held}]}
    first = node("logprobs", "logprobs", op="placeholder")
    return {"format": 1, "nodes": [first, *nodes, node("output", "output", result, op="output")]}


def by_hand(*nodes: Any, rank: int = 1, **ends: Any) -> Any:
    """What a client says of such a loss."""
    inputs = [{"name": "logprobs", "rank": rank}]
    return {"name": "mine", "inputs": inputs, "graph": graph(*nodes, **ends)}


SUM = node("loss", "sum", ref("logprobs"), op="call_method")
"""The simplest loss there is."""


def ppo(logprobs, sampled, advantages):
    """PPO of one sequence, with what it reports."""
    import torch

    ratio = torch.exp(logprobs - sampled)
    clipped = torch.clamp(ratio, 0.8, 1.2)
    loss = -torch.minimum(ratio * advantages, clipped * advantages).sum()
    is_clipped = (clipped != ratio).float().mean()
    kl = (sampled - logprobs).detach().mean()
    return loss, {
        "custom/clip_fraction:mean": is_clipped,
        "custom/kl:mean": kl,
        "custom/loss:sum": loss,
    }


def distillation(logprobs, teacher, temperature):
    """Soft targets ``(T, K)``: a divergence from a teacher's probabilities."""
    import torch
    import torch.nn.functional as F

    p = torch.softmax(teacher / temperature, dim=-1)
    q = F.log_softmax(logprobs, dim=-1)
    loss = (p * (torch.log(p) - q)).sum(dim=-1).mean() * logprobs.shape[0]
    top = p.max(dim=-1).values.mean()
    return loss, {"custom/divergence:sum": loss, "custom/top:mean": top}


def sequence_level(logprobs, reference, sign):
    """DPO-like: one margin for the whole sequence, which ties its tokens together."""
    import torch
    import torch.nn.functional as F

    margin = 0.1 * (logprobs - reference).sum() * sign
    loss = F.softplus(-margin) - F.logsigmoid(margin)
    first = logprobs[1:] - logprobs[:-1]
    smooth = 0.01 * torch.where(first > 0, first, torch.zeros_like(first)).square().sum()
    return loss + smooth / math.sqrt(logprobs.shape[0]), {
        "custom/margin:mean": margin,
        "custom/right:sum": (margin > 0).float(),
    }


SQUARES = [
    node("square", "torch.square", ref("logprobs")),
    node("loss", "sum", ref("square"), op="call_method"),
]
"""A loss that reads log-probs alone, and differs from every named one."""
