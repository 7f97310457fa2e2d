"""Model: the forward pass of training, from a micro-batch to the log-probs of its targets.

The same arithmetic as ``engines.torch.model``, in pieces that bring their own backward pass
(``ops``, ``attention``, ``head``). Behind the last attention only scored positions go on. Rows of
several runs go through the base model together, each run's with its own adapter.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from plait.engines.torch.arch import head_place
from plait.engines.torch.model import Rope
from plait.engines.torch.train.attention import Attention
from plait.engines.torch.train.batch import Packed
from plait.engines.torch.train.head import target_logprobs
from plait.engines.torch.train.ops import Adapters, Norm, gated_linear, linear, norm, pausing
from plait.engines.torch.train.params import RunParams
from plait.engines.torch.train.products import PLAIN, Products
from plait.engines.torch.weights import Layer, Weights


def logprobs(
    weights: Weights,
    rope: Rope,
    batch: Packed,
    params: Sequence[RunParams | None],
    on_layer: Callable[[], None] = lambda: None,
    *,
    recompute: bool = False,
    by: Products = PLAIN,
) -> torch.Tensor:
    """Log-probs ``(M,)`` of the targets. ``params`` are those of each of the batch's runs; ``None``
    is the base model.

    ``on_layer`` is called between layers, in the backward pass too. ``recompute`` keeps each
    layer's input alone and computes the layer again in the backward pass: the same bits, for the
    time of a second forward pass (Chen et al., arXiv 1604.06174).
    """
    a = weights.arch
    attention = Attention(batch, a, rope.at(batch.positions_N), exact=by.exact)
    x = F.embedding(batch.tokens_N, weights.embed)

    def run_layer(x: torch.Tensor, i: int) -> torch.Tensor:
        layer, rows = weights.layers[i], [s.tokens for s in batch.stretches]
        ln1, ln2 = Norm(layer.ln1, a.eps), Norm(layer.ln2, a.eps)
        at_qkv = _at(i, "qkv", rows, params)
        qkv = linear(x, layer.qkv, layer.qkv_bias, at_qkv, before=ln1, by=by)
        if layer.q_norm is not None:
            qkv = _norm_heads(qkv, layer, weights)
        h = attention(qkv)
        if i == a.n_layers - 1:
            h, x = h.index_select(0, batch.rows_S), x.index_select(0, batch.rows_S)
            rows = [s.scored for s in batch.stretches]
        o, gate_up, down = (_at(i, group, rows, params) for group in ("o", "gate_up", "down"))
        x = linear(h, layer.o, layer.o_bias, o, residual_NO=x, by=by)
        h = linear(x, layer.gate_up, layer.gate_up_bias, gate_up, before=ln2, by=by)
        return gated_linear(h, layer.down, layer.down_bias, down, residual_ND=x, by=by)

    for i in range(a.n_layers):
        x = pausing(x, on_layer)
        if recompute and torch.is_grad_enabled():
            x = checkpoint(run_layer, x, i, use_reentrant=False, preserve_rng_state=False)
        else:
            x = run_layer(x, i)
    h = norm(x, Norm(weights.norm, a.eps))
    return _score(h, weights, batch, params, by)


def _score(
    h_SD: torch.Tensor,
    weights: Weights,
    batch: Packed,
    params: Sequence[RunParams | None],
    by: Products,
) -> torch.Tensor:
    """Log-probs of the targets: of all runs together, unless one of them trains the head."""
    place = head_place(weights.arch)
    adapters = [p.fused.get(place) if p else None for p in params]
    if not any(adapters):
        return target_logprobs(h_SD, weights.head, batch.targets_M, batch.of_M, by)
    found, start = [], 0
    for stretch, adapter in zip(batch.stretches, adapters, strict=True):
        rows, its = stretch.scored, slice(start, start + sum(stretch.counts))
        of_M = None if batch.of_M is None else batch.of_M[its] - rows.start
        targets_M = batch.targets_M[its]
        found.append(target_logprobs(h_SD[rows], weights.head, targets_M, of_M, by, adapter))
        start = its.stop
    return torch.cat(found)


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
