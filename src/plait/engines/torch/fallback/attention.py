"""Attention as a ``transformers`` model asks for it: with its own scale, cap and window.

Two ways of answering: ``cached`` writes keys and values into the engine's blocks and looks back,
``packed`` lays a training micro-batch out as rows of queries and keys. Both see each sequence by
its positions, so what a query sees is asked of the model's own mask rule.

Shapes: N packed tokens; R rows of C queries and T keys; H heads, K key-value heads, E head size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers.masking_utils import causal_mask_function

from plait.engines.torch.batch import Batch, attend
from plait.engines.torch.kv import KV
from plait.engines.torch.train.batch import Packed


@dataclass(frozen=True, slots=True)
class Rule:
    """Which positions a query sees, in the form in which ``transformers`` builds its masks."""

    sees: Callable[[Any, Any, Any, Any], torch.Tensor]
    """``(batch, head, query's position, key's position)``."""

    @property
    def is_causal(self) -> bool:
        """Nothing but the future is hidden."""
        return self.sees is causal_mask_function

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """True where the query at a position sees the key at another; shapes are broadcast."""
        return self.sees(0, 0, queries, keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One layer's call. Values may be of another head size than keys."""

    layer: int
    q_NHE: torch.Tensor
    k_NKE: torch.Tensor
    v_NKE: torch.Tensor
    scaling: float
    softcap: float | None
    rule: Rule

    @property
    def is_plain(self) -> bool:
        """Our own attention over the cache computes it, given queries of another scale."""
        return self.rule.is_causal and self.softcap is None


Answer = Callable[[Asked], torch.Tensor]
"""``out_NHE``, of the values' head size."""


def cached(kv: KV, batch: Batch) -> Answer:
    """Attention of one step of sampling. Smaller heads than the cache's are filled up with zeros,
    which change no product."""
    plain = attend(kv, batch)

    def answer(asked: Asked) -> torch.Tensor:
        size = kv.head_dim
        q, k, v = (_widened(x, size) for x in (asked.q_NHE, asked.k_NKE, asked.v_NKE))
        if asked.is_plain:
            out = plain(asked.layer, q * (asked.scaling * size**0.5), k, v)
        else:
            kv.write(asked.layer, batch.slots_N, k, v)
            out = _look_back(kv, batch, asked, q)
        return out[..., : asked.v_NKE.shape[-1]]

    return answer


def _look_back(kv: KV, batch: Batch, asked: Asked, q_NHE: torch.Tensor) -> torch.Tensor:
    out = q_NHE.new_zeros(q_NHE.shape)
    for view in batch.decodes:
        rows = slice(view.n) if view.rows_B is None else view.rows_B
        k, v = (x.transpose(0, 1) for x in kv.gather(asked.layer, view.blocks, view.n))
        seen = asked.rule(batch.positions_N[rows][:, None, None], _range(k.shape[2], q_NHE))
        out[rows] = scored(q_NHE[rows][:, :, None], k, v, seen, asked)[:, :, 0]
    for chunk in batch.chunks:
        rows = slice(chunk.start, chunk.end)
        both = kv.gather(asked.layer, chunk.blocks, 1)
        k, v = (x.transpose(0, 1)[:, :, : chunk.n_tokens] for x in both)
        seen = asked.rule(batch.positions_N[None, rows, None], _range(k.shape[2], q_NHE))
        out[rows] = scored(q_NHE[rows].transpose(0, 1)[None], k, v, seen, asked)[0].transpose(0, 1)
    return out


def packed(batch: Packed) -> Answer:
    """Attention of a training micro-batch, with gradients by autograd. A prefix that sequences
    share is read by each of them."""
    r, c, t = batch.n_rows, batch.width, batch.longest
    places_RC = batch.places_RC
    if places_RC is None:
        places_RC = torch.arange(c, device=batch.tokens_N.device)[None]
    keys_T = torch.arange(t, device=places_RC.device)

    def lay_out(x_NXE: torch.Tensor) -> torch.Tensor:
        if batch.slots_N is not None:
            x_NXE = x_NXE.new_zeros(r * c, *x_NXE.shape[1:]).index_copy(0, batch.slots_N, x_NXE)
        return x_NXE.view(r, c, *x_NXE.shape[1:]).transpose(1, 2)

    def read(x_NXE: torch.Tensor) -> torch.Tensor:
        if batch.sources_P is None:
            return lay_out(x_NXE)
        grid = x_NXE.index_select(0, batch.sources_P)
        return grid.view(r, t, *x_NXE.shape[1:]).transpose(1, 2)

    def answer(asked: Asked) -> torch.Tensor:
        seen = asked.rule(places_RC[:, :, None], keys_T).expand(r, c, t)
        q, k, v = lay_out(asked.q_NHE), read(asked.k_NKE), read(asked.v_NKE)
        out = scored(q, k, v, seen, asked).transpose(1, 2).flatten(0, 1)
        return out if batch.slots_N is None else out.index_select(0, batch.slots_N)

    return answer


def scored(
    q_RHCE: torch.Tensor,
    k_RKTE: torch.Tensor,
    v_RKTE: torch.Tensor,
    seen_RCT: torch.Tensor,
    asked: Asked,
) -> torch.Tensor:
    """``out_RHCE``. Every query sees a key."""
    n_heads, n_keys = q_RHCE.shape[1], k_RKTE.shape[1]
    if asked.softcap is None:
        return F.scaled_dot_product_attention(
            q_RHCE,
            k_RKTE,
            v_RKTE,
            attn_mask=seen_RCT[:, None],
            scale=asked.scaling,
            enable_gqa=n_heads != n_keys,
        )
    q_RKGCE = q_RHCE.unflatten(1, (n_keys, n_heads // n_keys))
    scores = torch.matmul(q_RKGCE, k_RKTE[:, :, None].transpose(-1, -2)) * asked.scaling
    scores = asked.softcap * torch.tanh(scores / asked.softcap)
    scores = scores.masked_fill(~seen_RCT[:, None, None], -torch.inf)
    weights = scores.softmax(-1, dtype=torch.float32).to(v_RKTE.dtype)
    return torch.matmul(weights, v_RKTE[:, :, None]).flatten(1, 2)


def _widened(x_NXE: torch.Tensor, size: int) -> torch.Tensor:
    missing = size - x_NXE.shape[-1]
    return F.pad(x_NXE, (0, missing)) if missing else x_NXE


def _range(n: int, like: torch.Tensor) -> torch.Tensor:
    return torch.arange(n, device=like.device)
