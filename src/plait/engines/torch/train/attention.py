"""Attention: causal attention over a training micro-batch.

Packed tokens are laid out right-padded, so that the causal mask alone keeps sequences and padding
apart: a real query never sees a place to its right. Keys and values are never repeated for the
queries that share them.

Shapes: N packed tokens, B sequences, T the longest, H heads, K key-value heads, E head size.
"""

import torch
import torch.nn.functional as F

from plait.engines.torch.train.batch import Packed


class PaddedAttention:
    """``model.Attend`` for one micro-batch."""

    def __init__(self, batch: Packed) -> None:
        self._slots_N, self._b, self._t = batch.slots_N, batch.n_seqs, batch.longest

    def __call__(
        self, layer: int, q_NHE: torch.Tensor, k_NKE: torch.Tensor, v_NKE: torch.Tensor
    ) -> torch.Tensor:
        out_BHTE = F.scaled_dot_product_attention(
            self._pad(q_NHE),
            self._pad(k_NKE),
            self._pad(v_NKE),
            is_causal=True,
            enable_gqa=q_NHE.shape[1] != k_NKE.shape[1],
        )
        out = out_BHTE.transpose(1, 2).reshape(self._b * self._t, *q_NHE.shape[1:])
        return out if self._slots_N is None else out.index_select(0, self._slots_N)

    def _pad(self, x_NHE: torch.Tensor) -> torch.Tensor:
        if self._slots_N is not None:
            grid = x_NHE.new_zeros(self._b * self._t, *x_NHE.shape[1:])
            x_NHE = grid.index_copy(0, self._slots_N, x_NHE)
        return x_NHE.view(self._b, self._t, *x_NHE.shape[1:]).transpose(1, 2)
