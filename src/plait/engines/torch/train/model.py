"""Model: the forward pass of training, from a micro-batch to the log-probs of its targets.

The same arithmetic as ``engines.torch.model``, in pieces that bring their own backward pass
(``ops``, ``attention``, ``head``). Behind the last attention only scored positions go on, and
gradients only where the loss can move (``scored``). Rows of several runs go through the base model
together, each run's with its own adapter.
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
from plait.engines.torch.train.scored import Scored, gathered, moving
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
    tokens = [s.tokens for s in batch.stretches]
    again = recompute and torch.is_grad_enabled()

    def attended(x: torch.Tensor, i: int) -> torch.Tensor:
        layer = weights.layers[i]
        at_qkv, ln1 = _at(i, "qkv", tokens, params), Norm(layer.ln1, a.eps)
        qkv = linear(x, layer.qkv, layer.qkv_bias, at_qkv, before=ln1, by=by)
        if layer.q_norm is not None:
            qkv = _norm_heads(qkv, layer, weights)
        return attention(qkv)

    def behind(h: torch.Tensor, x: torch.Tensor, i: int, rows: Sequence[slice]) -> torch.Tensor:
        layer, ln2 = weights.layers[i], Norm(weights.layers[i].ln2, a.eps)
        o, gate_up, down = (_at(i, group, rows, params) for group in ("o", "gate_up", "down"))
        x = linear(h, layer.o, layer.o_bias, o, residual_NO=x, by=by)
        h = linear(x, layer.gate_up, layer.gate_up_bias, gate_up, before=ln2, by=by)
        return gated_linear(h, layer.down, layer.down_bias, down, residual_ND=x, by=by)

    def run_layer(x: torch.Tensor, i: int) -> torch.Tensor | tuple[torch.Tensor, ...]:
        h = attended(x, i)
        if i < a.n_layers - 1:
            return behind(h, x, i, tokens)
        found = []
        for part in batch.scored:
            with moving(part):
                mine, its = (t.index_select(0, part.rows_S) for t in (h, x))
                found.append(behind(mine, its, i, part.runs))
        return tuple(found)

    for i in range(a.n_layers):
        x = pausing(x, on_layer)
        if again:
            x = checkpoint(run_layer, x, i, use_reentrant=False, preserve_rng_state=False)
        else:
            x = run_layer(x, i)
    found = []
    for part, h in zip(batch.scored, x, strict=True):
        with moving(part):
            h = norm(h, Norm(weights.norm, a.eps))
            found.append(_score(h, weights, part, params, by))
    return gathered(found, batch.places_M)


def _score(
    h_SD: torch.Tensor,
    weights: Weights,
    part: Scored,
    params: Sequence[RunParams | None],
    by: Products,
) -> torch.Tensor:
    """Log-probs ``(U,)`` of a part's targets: of all runs together, unless one of them trains the
    head."""
    place = head_place(weights.arch)
    adapters = [p.fused.get(place) if p else None for p in params]
    if not any(adapters):
        return target_logprobs(h_SD, weights.head, part.targets_U, part.of_U, by)
    found = []
    for rows, adapter in zip(part.runs, adapters, strict=True):
        if rows.start == rows.stop:
            continue
        its, of_U = rows, part.of_U
        if of_U is not None:
            ends = of_U.new_tensor([rows.start, rows.stop])
            its = slice(*torch.searchsorted(of_U, ends).tolist())
            of_U = of_U[its] - rows.start
        targets_U = part.targets_U[its]
        found.append(target_logprobs(h_SD[rows], weights.head, targets_U, of_U, by, adapter))
    return torch.cat(found)


def _at(
    layer: int, group: str, rows: Sequence[slice], params: Sequence[RunParams | None]
) -> Adapters:
    """The adapters of one fused projection, of runs that have rows."""
    pairs = [(s, p) for s, p in zip(rows, params, strict=True) if p and s.start < s.stop]
    return [(s, p.fused[layer, group]) for s, p in pairs if (layer, group) in p.fused]


def _norm_heads(qkv_NO: torch.Tensor, layer: Layer, weights: Weights) -> torch.Tensor:
    a = weights.arch
    q, k, v = qkv_NO.split((a.q_size, a.kv_size, a.kv_size), -1)
    q = norm(q.view(len(q), a.n_heads, a.head_dim), Norm(layer.q_norm, a.eps))
    k = norm(k.view(len(k), a.n_kv_heads, a.head_dim), Norm(layer.k_norm, a.eps))
    return torch.cat([q.flatten(1), k.flatten(1), v], -1)
