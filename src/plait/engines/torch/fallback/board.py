"""Board: where a ``transformers`` model's layers meet what the engine lays out for one pass.

``transformers`` finds an attention function by its name, so each model gets a name of its own,
bound to its board; attention that asks for anything that is not computed here is refused. Linear
layers ask the board as well, which adds adapters.
"""

import weakref
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface

from plait.adapters.peft import layer_of
from plait.core.errors import ModelError
from plait.engines.torch.fallback.attention import Answer, Asked, Rule
from plait.engines.torch.train.ops import pausing

Project = Callable[[tuple[int, str], torch.Tensor, nn.Linear], torch.Tensor]
"""``(layer and group, x_NI, the layer) -> y_NO``."""

_NUMBERS = count()

UNKNOWN = ("s_aux", "position_bias", "alibi", "head_mask", "block_table")
"""What some models hand to their attention and nothing here computes."""


def base_only(_: tuple[int, str], x_NI: torch.Tensor, linear: nn.Linear) -> torch.Tensor:
    """A linear layer without adapters."""
    return F.linear(x_NI, linear.weight, linear.bias)


class Board:
    """``answer`` and ``project`` are of the present pass, the backward one included; ``head`` is
    ``project`` of the output layer, of the rows that are going through it. ``on_layer`` is called
    at each layer of both passes."""

    def __init__(self) -> None:
        self.name = f"plait_{next(_NUMBERS)}"
        self.answer: Answer | None = None
        self.project: Project = base_only
        self.head: Project = base_only
        self.on_layer: Callable[[], None] = lambda: None
        # The registries last as long as the process: a cache must not.
        here = weakref.WeakMethod(self._attention)
        AttentionInterface.register(self.name, lambda *args, **more: here()(*args, **more))
        AttentionMaskInterface.register(self.name, _mask)

    def connect(self, path: str, linear: nn.Linear, *, is_head: bool) -> None:
        """Make a linear layer ask for its product here."""
        key = (layer_of(path), path)
        linear.forward = partial(self._linear, key, linear, is_head)

    def _linear(
        self, key: tuple[int, str], linear: nn.Linear, is_head: bool, x: torch.Tensor
    ) -> torch.Tensor:
        project = self.head if is_head else self.project
        y_NO = project(key, x.reshape(-1, x.shape[-1]), linear)
        return y_NO.view(*x.shape[:-1], -1)

    def _attention(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        *,
        scaling: float | None = None,
        dropout: float = 0.0,
        softcap: float | None = None,
        is_causal: bool | None = None,
        **more: Any,
    ) -> tuple[torch.Tensor, None]:
        """What ``AttentionInterface`` expects: ``out_1NHE``, and no weights."""
        query = pausing(query, self.on_layer)
        layer = getattr(module, "layer_idx", None)
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        odd = [name for name in UNKNOWN if more.get(name) is not None]
        wrong = (
            (layer is None, "does not number its layers"),
            (not isinstance(attention_mask, Rule), "makes its masks in a way of its own"),
            (not causal, "looks ahead"),
            (dropout > 0, "drops attention weights at random"),
            (bool(odd), f"takes {', '.join(odd)}"),
        )
        for is_so, what in wrong:
            if is_so:
                raise ModelError(f"{type(module).__name__} {what}, which is not supported")
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        asked = Asked(
            layer=layer,
            q_NHE=q,
            k_NKE=k,
            v_NKE=v,
            scaling=q.shape[-1] ** -0.5 if scaling is None else float(scaling),
            softcap=softcap,
            rule=attention_mask,
        )
        return self.answer(asked)[None], None


def _mask(*_: Any, mask_function: Callable[..., torch.Tensor], **__: Any) -> Rule:
    """What ``AttentionMaskInterface`` expects: passed through to the attention function."""
    return Rule(mask_function)
