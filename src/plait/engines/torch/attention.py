"""Attention of single queries over gathered keys and values, as batched products.

On a CPU a fifth faster than the fused kernel, which is made for many queries. Where a cluster of
rows shares a prefix, its part of the scores is one product per cluster instead of one per row; a
single softmax goes over both parts, so that the result is the same but for rounding.

Shapes: K key-value heads, B rows, G query heads to each key-value head, E head size, T own tokens,
S shared tokens, C clusters of up to M rows.
"""

import torch

from plait.engines.torch.views import SharedView

KeyValue = tuple[torch.Tensor, torch.Tensor]


def attend_batched(
    q_KBGE: torch.Tensor, k_KBTE: torch.Tensor, v_KBTE: torch.Tensor, mask_B1T: torch.Tensor
) -> torch.Tensor:
    """``out_KBGE``; the mask's first axis is K · B."""
    k_heads, n, g, e = q_KBGE.shape
    q, k, v = q_KBGE.reshape(-1, g, e), k_KBTE.flatten(0, 1), v_KBTE.flatten(0, 1)
    weights = torch.baddbmm(mask_B1T, q, k.transpose(1, 2), alpha=e**-0.5).softmax(-1)
    return torch.bmm(weights, v).view(k_heads, n, g, e)


def attend_shared(
    q_KBGE: torch.Tensor,
    own: KeyValue,
    mask_B1T: torch.Tensor,
    shared: KeyValue,
    view: SharedView,
) -> torch.Tensor:
    """``out_KBGE`` over each row's cluster's shared tokens and its own."""
    heads, n, g, e = q_KBGE.shape
    (k, v), (k_shared, v_shared) = (tuple(t.flatten(0, 1) for t in kv) for kv in (own, shared))
    n_clusters, s = heads * view.n_clusters, k_shared.shape[1]

    def spread(x_KBGX: torch.Tensor) -> torch.Tensor:
        """Rows put into their places in the clusters."""
        x = x_KBGX if view.members is None else x_KBGX.index_select(1, view.members)
        return x.reshape(n_clusters, -1, x.shape[-1])

    def collect(x: torch.Tensor) -> torch.Tensor:
        """The rows again, ``[K, B, G, X]``."""
        x = x.view(heads, -1, g, x.shape[-1])
        return x if view.place_B is None else x.index_select(1, view.place_B)

    scores_shared = torch.baddbmm(
        view.mask_C1S, spread(q_KBGE), k_shared.transpose(1, 2), alpha=e**-0.5
    )
    scores_own = torch.baddbmm(
        mask_B1T, q_KBGE.reshape(-1, g, e), k.transpose(1, 2), alpha=e**-0.5
    ).view(heads, n, g, -1)
    weights = torch.cat([collect(scores_shared), scores_own], -1).softmax(-1)
    out = torch.bmm(weights[..., s:].flatten(0, 1), v).view(heads, n, g, e)
    return out.add_(collect(torch.bmm(spread(weights[..., :s]), v_shared)))
