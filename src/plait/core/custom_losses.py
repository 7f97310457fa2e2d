"""Custom losses: a client's own loss as plain data.

A loss is a graph that the client traced: nodes in the order of execution, each naming an operation
of ``custom_ops`` and earlier nodes. It is given one datum's log-probs, ``(N,)`` or ``(N, K)``, and
the inputs that it names; it gives a loss, whose derivative by the log-probs trains, and metrics. A
batch's loss is the sum over its data; a metric's name ends in how it is combined (``:sum``,
``:mean``).

``custom_graphs`` reads and checks one: whatever could not be carried out for any data is refused
there. What depends on data (shapes, sizes, values that are no numbers) is the engine's.
"""

from dataclasses import dataclass
from typing import Any

CUSTOM = "custom"
"""The loss's name where losses have names."""
LOGPROBS = "logprobs"
"""The first input of each."""
TARGETS = "target_tokens"
"""An input that every datum has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input, and the rank that each datum's value has."""

    name: str
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation. Arguments are as on the wire: JSON values stand for themselves, and objects of
    one key for what JSON has no word for (``{"ref": name}`` is an earlier node or an input)."""

    name: str
    target: str
    """A name of ``OPERATIONS``."""
    args: list[Any]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomLoss:
    """A checked loss. ``loss`` and the values of ``metrics`` are nodes."""

    name: str
    inputs: tuple[Input, ...]
    """``logprobs`` first."""
    nodes: tuple[Node, ...]
    places: tuple[str, ...]
    """What nodes call the inputs."""
    loss: str
    metrics: dict[str, str]


Loss = str | CustomLoss
"""A loss by name (``core.losses``), or a client's own."""
