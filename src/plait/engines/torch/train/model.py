"""Model: the forward pass of training, from a micro-batch to the log-probs of its targets.

The same arithmetic as ``engines.torch.model``, in pieces that bring their own backward pass
(``ops``, ``attention``, ``head``). Behind the last attention only scored positions go on. Rows of
several runs go through the base model together, each run's with its own adapter.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from plait.engines.torch.model import Rope
from plait.engines.torch.train.attention import Attention
from plait.engines.torch.train.batch import Packed
from plait.engines.torch.train.head import target_logprobs
from plait.engines.torch.train.ops import Adapters, Norm, gated_linear, linear, norm, pausing
from plait.engines.torch.train.params import RunParams
from plait.engines.torch.weights import Layer, Weights


def logprobs(
    weights: Weights,
    rope: Rope,
    batch: Packed,
    params: Sequence[RunParams | None],
    on_layer: Callable[[], None] = lambda: None,
) -> torch.Tensor:
    """Log-probs ``(M,)`` at the scored positions. ``params`` are those of each of the batch's runs;
    ``None`` is the base model.

    ``on_layer`` is called between layers, in the backward pass too.
    """
    a = weights.arch
    rows = [s.tokens for s in batch.stretches]
    attention = Attention(batch, a, rope.at(batch.positions_N))
    x = F.embedding(batch.tokens_N, weights.embed)
    for i, layer in enumerate(weights.layers):
        x = pausing(x, on_layer)
        ln1, ln2 = Norm(layer.ln1, a.eps), Norm(layer.ln2, a.eps)
        qkv = linear(x, layer.qkv, layer.qkv_bias, _at(i, "qkv", rows, params), before=ln1)
        if layer.q_norm is not None:
            qkv = _norm_heads(qkv, layer, weights)
        h = attention(qkv)
        if i == a.n_layers - 1:
            h, x = h.index_select(0, batch.rows_M), x.index_select(0, batch.rows_M)
            rows = [s.scored for s in batch.stretches]
        o, gate_up, down = (_at(i, group, rows, params) for group in ("o", "gate_up", "down"))
        x = linear(h, layer.o, layer.o_bias, o, residual_NO=x)
        h = linear(x, layer.gate_up, layer.gate_up_bias, gate_up, before=ln2)
        x = gated_linear(h, layer.down, layer.down_bias, down, residual_ND=x)
    h = norm(x, Norm(weights.norm, a.eps))
    return target_logprobs(h, weights.head, batch.targets_M)


def _at(
    layer: int, group: str, rows: Sequence[slice], params: Sequence[RunParams | None]
) -> Adapters:
    """The adapters of one fused projection."""
    pairs = zip(rows, params, strict=True)
    return [(s, p.fused[layer, group]) for s, p in pairs if p and (layer, group) in p.fused]


def _norm_heads(qkv_NO: torch.Tensor, layer: Layer, weights: Weights) -> torch.Tensor:
    a = weights.arch
    q, k, v = qkv_NO.split((a.q_size, a.kv_size, a.kv_size), -1)
    q = norm(q.view(len(q), a.n_heads, a.head_dim), Norm(layer.q_norm, a.eps))
    k = norm(k.view(len(k), a.n_kv_heads, a.head_dim), Norm(layer.k_norm, a.eps))
    return torch.cat([q.flatten(1), k.flatten(1), v], -1)
