"""KV: keys and values in blocks, and attention over them.

Per layer one tensor ``[2, K, blocks + 1, size, E]``: a gather of a batch's blocks along the third
axis is then at once the ``[K, B, T, E]`` that attention wants. The last block is never written:
rows that need fewer blocks than the longest are padded with it. Slots past a row's length are
masked, but a NaN there would still come through (0 · NaN), so a block is cleared before it is first
used in part.

Shapes: N rows of the step, B of them decoding; K key-value heads, G query heads to each; T tokens;
E head size. Query heads are folded into the query length, so keys and values are never repeated.
"""

import threading
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from plait.engines.torch import exact
from plait.engines.torch.attention import attend_batched, attend_shared
from plait.engines.torch.sizes import Sizes
from plait.engines.torch.views import ChunkView, DecodeView


class _Buffers(threading.local):
    """Where keys and values are gathered, of each thread its own."""

    def __init__(self, like: torch.Tensor) -> None:
        self.found = [like.new_empty((2, 1, 0)) for _ in range(2)]


class KV:
    """The cache's memory. Several threads may read it, and write to slots that are not others'."""

    def __init__(
        self,
        arch: Sizes,
        n_blocks: int,
        *,
        block_size: int,
        dtype: torch.dtype,
        device: str,
        exact: bool = False,
    ) -> None:
        self.n_blocks = n_blocks
        self.block_size = block_size
        self._arch = arch
        self._exact = exact
        shape = (2, arch.n_kv_heads, n_blocks + 1, block_size, arch.head_dim)
        self._layers = [
            torch.zeros(shape, dtype=dtype, device=device) for _ in range(arch.n_layers)
        ]
        self._buffers = _Buffers(self._layers[0])

    @property
    def dtype(self) -> torch.dtype:
        return self._layers[0].dtype

    @property
    def block_bytes(self) -> int:
        """Keys and values of one block in one layer."""
        a = self._arch
        return 2 * a.n_kv_heads * self.block_size * a.head_dim * self.dtype.itemsize

    @property
    def n_heads(self) -> int:
        return self._arch.n_kv_heads

    @property
    def head_dim(self) -> int:
        return self._arch.head_dim

    @property
    def null_block(self) -> int:
        return self.n_blocks

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, destination); sources are read before any destination is written."""
        if pairs:
            device = self._layers[0].device
            source, target = (torch.tensor(x, device=device) for x in zip(*pairs, strict=True))
            for layer in self._layers:
                layer.index_copy_(2, target, layer.index_select(2, source))

    def clear(self, blocks: Sequence[int]) -> None:
        if blocks:
            index = torch.tensor(blocks, device=self._layers[0].device)
            for layer in self._layers:
                layer.index_fill_(2, index, 0.0)

    def dump(self, blocks: Sequence[int]) -> bytes:
        """Content of blocks: layer by layer ``[2, K, blocks, size, E]``."""
        index = torch.tensor(blocks, device=self._layers[0].device)
        content = torch.stack([layer.index_select(2, index) for layer in self._layers])
        return content.cpu().view(torch.uint8).numpy().tobytes()

    def load(self, blocks: Sequence[int], content: bytes) -> None:
        """Put what ``dump`` gave into as many blocks."""
        like = self._layers[0]
        shape = (len(self._layers), *like.shape[:2], len(blocks), *like.shape[3:])
        found = torch.frombuffer(bytearray(content), dtype=like.dtype).view(shape).to(like.device)
        index = torch.tensor(blocks, device=like.device)
        for layer, part in zip(self._layers, found, strict=True):
            layer.index_copy_(2, index, part)

    def resize(self, n_blocks: int, moves: dict[int, int]) -> None:
        """Change the number of blocks; ``moves`` are old → new places below ``n_blocks``."""
        self.copy(list(moves.items()))
        keep = min(n_blocks, self.n_blocks)
        for i, old in enumerate(self._layers):
            new = old.new_zeros((*old.shape[:2], n_blocks + 1, *old.shape[3:]))
            new[:, :, :keep] = old[:, :, :keep]
            self._layers[i] = new
        self.n_blocks = n_blocks

    def write(
        self, layer: int, slots_N: torch.Tensor, k_NKE: torch.Tensor, v_NKE: torch.Tensor
    ) -> None:
        """Put keys and values of the first ``len(slots_N)`` rows into their slots."""
        n = slots_N.shape[0]
        flat = self._layers[layer].flatten(2, 3)
        flat[0].index_copy_(1, slots_N, k_NKE[:n].transpose(0, 1))
        flat[1].index_copy_(1, slots_N, v_NKE[:n].transpose(0, 1))

    def decode(self, layer: int, q_NHE: torch.Tensor, view: DecodeView) -> torch.Tensor:
        """Attention of one query per row over everything that its sequence has cached."""
        a, n = self._arch, view.n
        q = q_NHE[:n] if view.rows_B is None else q_NHE.index_select(0, view.rows_B)
        q_KBGE = q.reshape(n, a.n_kv_heads, -1, a.head_dim).transpose(0, 1)
        k, v = self.gather(layer, view.blocks, n)
        if self._exact:
            out = self._decode_exactly(q_KBGE, k, v, view)
        elif view.shared is not None:
            shared = self.gather(layer, view.shared.blocks, view.shared.n_clusters, which=1)
            out = attend_shared(q_KBGE, (k, v), view.mask_B1T, shared, view.shared)
        elif q.device.type == "cpu":
            out = attend_batched(q_KBGE, k, v, view.mask_B1T)
        else:
            mask = view.mask_B1T.view(a.n_kv_heads, n, 1, -1)
            out = F.scaled_dot_product_attention(q_KBGE, k, v, attn_mask=mask)
        return out.transpose(0, 1).reshape(n, a.n_heads, a.head_dim)

    def _decode_exactly(
        self, q_KBGE: torch.Tensor, k_KBTE: torch.Tensor, v_KBTE: torch.Tensor, view: DecodeView
    ) -> torch.Tensor:
        q, k, v = (x.flatten(0, 1) for x in (q_KBGE, k_KBTE, v_KBTE))
        out = exact.attend(q * self._arch.head_dim**-0.5, k, v, view.mask_B1T)
        return out.reshape(q_KBGE.shape)

    def chunk(self, layer: int, q_NHE: torch.Tensor, view: ChunkView) -> torch.Tensor:
        """Causal attention of a run of queries over their sequence's cache, themselves included."""
        a, n = self._arch, view.end - view.start
        q_KGNE = (
            q_NHE[view.start : view.end]
            .reshape(n, a.n_kv_heads, -1, a.head_dim)
            .permute(1, 2, 0, 3)
        )
        k, v = self.gather(layer, view.blocks, 1)
        if self._exact:
            places_N = torch.arange(view.n_tokens - n, view.n_tokens)
            out = exact.causal(q_KGNE, k[:, 0], v[:, 0], places_N)
            return out.permute(2, 0, 1, 3).reshape(n, a.n_heads, a.head_dim)
        wide = (-1, q_KGNE.shape[1], -1, -1)
        out = F.scaled_dot_product_attention(
            q_KGNE,
            k[:, :, : view.n_tokens].expand(wide),
            v[:, :, : view.n_tokens].expand(wide),
            attn_mask=view.mask_NT,
            is_causal=view.mask_NT is None,
        )
        return out.permute(2, 0, 1, 3).reshape(n, a.n_heads, a.head_dim)

    def gather(
        self, layer: int, blocks: torch.Tensor, n: int, *, which: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[K, n, T, E]`` of ``n`` equally long lists of blocks.

        On a CPU they lie in a buffer that this thread's next call overwrites: new memory for every
        layer would cost more than the copy. On CUDA new memory costs nothing, and a recorded step
        may not share any with others.
        """
        a, size = self._arch, self.block_size
        if self._layers[layer].device.type != "cpu":
            found = self._layers[layer].index_select(2, blocks)
            k, v = found.view(2, a.n_kv_heads, n, -1, a.head_dim).unbind(0)
            return k, v
        shape = (2, a.n_kv_heads, blocks.shape[0], size, a.head_dim)
        buffers = self._buffers.found
        if buffers[which].shape[2:3] != shape[2:3]:
            buffers[which] = self._layers[layer].new_empty(shape)
        buffer = buffers[which]
        torch.index_select(self._layers[layer], 2, blocks, out=buffer)
        k, v = buffer.view(2, a.n_kv_heads, n, -1, a.head_dim).unbind(0)
        return k, v
