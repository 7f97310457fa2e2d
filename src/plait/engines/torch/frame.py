"""Frame: one decode step over buffers that stay where they are, so that it can be recorded.

Rows that are not needed repeat the first one, down to the slot that they write: they change
nothing. All of a step's numbers come in one copy. The same code runs eagerly on a CPU, where tests
hold it against the ordinary way.

Shapes: B rows, N blocks of each; T tokens of a row's blocks; V vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from plait.engines.torch.batch import Batch
from plait.engines.torch.kv import KV
from plait.engines.torch.model import Rope, forward
from plait.engines.torch.packed import Linear
from plait.engines.torch.replays import Key
from plait.engines.torch.stack import Stack
from plait.engines.torch.views import DecodeView
from plait.engines.torch.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What every frame of an engine computes with."""

    weights: Weights
    rope: Rope
    kv: KV
    stack: Stack
    linear: Linear


class Frame:
    """The static buffers of one key."""

    def __init__(self, key: Key, parts: Parts) -> None:
        self._key, self._parts = key, parts
        # Columns: token, position, slot, adapter's number, block table.
        self._host_BX = np.zeros((key.rows, 4 + key.blocks), dtype=np.int64)
        self._numbers_BX = torch.zeros(
            self._host_BX.shape, dtype=torch.int64, device=parts.weights.device
        )

    def fill(self, batch: Batch, adapter_numbers: list[int]) -> None:
        """Bring the numbers of a step in; ``batch`` was built for the host alone."""
        host, n, table_BN = self._host_BX, batch.n_decode, batch.table_BN
        host[:n, 0], host[:n, 1] = batch.tokens_N.numpy(), batch.positions_N.numpy()
        host[:n, 2], host[:n, 3] = batch.slots_N.numpy(), adapter_numbers
        host[:n, 4:] = self._parts.kv.null_block
        host[:n, 4 : 4 + table_BN.shape[1]] = table_BN
        host[n:] = host[0]
        self._numbers_BX.copy_(torch.from_numpy(host))

    def compute(self) -> torch.Tensor:
        """``logits_BV`` of what the buffers hold; every row is filled."""
        key, parts, kv = self._key, self._parts, self._parts.kv
        tokens_B, positions_B, slots_B, numbers_B = self._numbers_BX[:, :4].t().contiguous()
        view = DecodeView(
            rows_B=None,
            blocks=self._numbers_BX[:, 4:].flatten(),
            n=key.rows,
            mask_B1T=self._mask(positions_B),
            shared=None,
        )

        def attend(i: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            kv.write(i, slots_B, k, v)
            return kv.decode(i, q, view)

        h_BD = forward(
            parts.weights,
            tokens_B,
            parts.rope.at(positions_B),
            attend,
            adapters=parts.stack.adapters(numbers_B) if key.columns else None,
            linear=parts.linear,
            silu=F.silu,
        )
        return parts.linear(h_BD, parts.weights.head, None)

    def _mask(self, positions_B: torch.Tensor) -> torch.Tensor:
        """As ``batch`` makes it, ``[K · B, 1, T]``, but on the device."""
        kv = self._parts.kv
        place_T = torch.arange(self._key.blocks * kv.block_size, device=positions_B.device)
        beyond_BT = place_T > positions_B[:, None]
        mask_BT = torch.zeros(beyond_BT.shape, dtype=kv.dtype, device=positions_B.device)
        mask_BT.masked_fill_(beyond_BT, float("-inf"))
        return mask_BT.repeat(kv.n_heads, 1).unsqueeze(1)
