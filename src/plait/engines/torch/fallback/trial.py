"""Trial: on start, a few tokens through the model both ways, before anybody relies on it.

``transformers`` grows and its models differ; one whose log-probs with our attention are not those
of ``transformers`` alone (a bias on scores, a state beside the cache, positions of its own) is
refused instead of being run wrongly.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from plait.adapters.peft import layer_of
from plait.core.errors import ModelError
from plait.engines.torch.fallback.attention import Asked
from plait.engines.torch.fallback.board import Board, base_only
from plait.engines.torch.fallback.sizes import Foreign
from plait.engines.torch.sizes import Site
from plait.engines.torch.train.batch import Packed, pack
from plait.engines.torch.train.checked import Checked
from plait.models.shape import read_shape

TOKENS = ((5, 3, 8, 6, 2, 9, 4), (7, 2, 6, 4))
"""Two sequences, so that positions of one must not count for the other."""

TOLERANCE = {torch.float32: 1e-3}
ROUGH = 0.2
"""Log-probs that agree so far are the same but for rounding; ``ROUGH`` in half precision."""


@dataclass(slots=True)
class Found:
    """What a model's attention showed of itself."""

    asked: dict[int, Asked] = field(default_factory=dict)
    hidden: int = 0

    @property
    def is_plain(self) -> bool:
        """Our attention over the cache computes every layer."""
        return all(asked.is_plain for asked in self.asked.values())

    def sizes(self, model_dir: str | Path, linears: dict[str, nn.Linear], head: str) -> Foreign:
        """ModelError if its layers cannot share one cache. ``head`` is one of the linear layers."""
        shape = read_shape(model_dir)
        if set(self.asked) != set(range(shape.n_layers)):
            raise ModelError(
                f"{model_dir} has attention in {len(self.asked)} of its {shape.n_layers} layers; "
                "a state of another kind is not supported"
            )
        heads = {(a.q_NHE.shape[1], a.k_NKE.shape[1]) for a in self.asked.values()}
        if len(heads) > 1:
            raise ModelError(f"{model_dir} has layers with other numbers of heads than others")
        ((n_heads, n_kv_heads),) = heads
        head_sizes = [x.shape[2] for a in self.asked.values() for x in (a.k_NKE, a.v_NKE)]
        sites = tuple(
            Site(
                layer=layer_of(name),
                group=name,
                n_in=linear.in_features,
                modules=((name, linear.out_features),),
            )
            for name, linear in linears.items()
        )
        return Foreign(
            vocab_size=shape.vocab_size,
            hidden=self.hidden,
            inter=max(max(s.n_in, s.modules[0][1]) for s in sites if s.group != head),
            n_layers=shape.n_layers,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=max(head_sizes),
            max_context=shape.max_context,
            linears=sites,
            head=head,
        )


def measure(
    board: Board,
    hidden: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    device: torch.device,
) -> Found:
    """Watch one pass without any attention."""
    found = Found()

    def answer(asked: Asked) -> torch.Tensor:
        found.asked[asked.layer] = asked
        like = asked.v_NKE
        return like.new_zeros(len(like), asked.q_NHE.shape[1], like.shape[2])

    board.answer, board.project = answer, base_only
    tokens = torch.tensor(TOKENS[0], device=device)
    with torch.inference_mode():
        found.hidden = hidden(tokens, torch.arange(len(tokens), device=device)).shape[-1]
    return found


def try_out(
    model: Any,
    board: Board,
    logprobs: Callable[[Packed], torch.Tensor],
    device: torch.device,
    name: str,
) -> None:
    """ModelError if ``logprobs`` differ from the model's own."""
    data = [_datum(tokens) for tokens in TOKENS]
    with torch.inference_mode():
        ours = logprobs(pack([data], device))
        board.project = board.head = base_only
        model.set_attn_implementation("eager")
        theirs = []
        for tokens in TOKENS:
            ids = torch.tensor([tokens], device=device)
            logits = model(input_ids=ids[:, :-1], use_cache=False).logits[0].float()
            theirs.append(logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0])
        model.set_attn_implementation(board.name)
    gap = float((ours - torch.cat(theirs)).abs().max())
    if not gap <= TOLERANCE.get(next(model.parameters()).dtype, ROUGH):
        raise ModelError(
            f"{name}: with plait's attention a {type(model).__name__} has other log-probs than by "
            f"transformers alone (by {gap:.2g}): its kind of attention is not supported"
        )


def _datum(tokens: tuple[int, ...]) -> Checked:
    n = len(tokens) - 1
    return Checked(
        tokens=np.array(tokens[:-1]),
        targets=np.array(tokens[1:]),
        scored=np.arange(n),
        inputs={},
        moves=np.ones(n, dtype=bool),
    )
