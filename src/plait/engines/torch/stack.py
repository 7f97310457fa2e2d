"""Stack: the adapters of all runs side by side, for steps whose shapes must not change.

A adapter of rank R takes R free columns of a common matrix per fused projection, whatever columns
they are. Each row multiplies with all columns and keeps its own adapter's, so that who sits where,
and which rows are whose, is data. What a row does not keep becomes zero before B, and only finite
adapters are taken in, so no row meets another adapter's numbers (0 · NaN would be NaN). One that
changes the head is left out.

Shapes: B rows; S columns; K layers of a fused projection; I inputs, O outputs.
"""

from dataclasses import dataclass

import torch

from plait.adapters.peft import Adapter
from plait.core.runs import HEAD
from plait.engines.torch.arch import GROUPS, Arch, group_sizes
from plait.engines.torch.blocks import Policy
from plait.engines.torch.replays import fill_up

LEAST_COLUMNS = 32
MAX_COLUMNS = 512
"""Beyond these the products with everybody's columns cost more than launches save (a layer of 1,024
by 3,072 has 1,024 columns of its own). An estimate: not measured on a GPU."""

NOBODY = 0
"""Number of rows without an adapter. Numbers are given once, so that columns which are free keep
theirs, or -1 from the start, and are no row's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacked:
    """One fused projection's A, ``[I, K · S]``, and per layer its output columns and B."""

    a_IKS: torch.Tensor
    parts: tuple[tuple[slice, torch.Tensor], ...]


class Stack:
    """Columns, who has them, and the matrices."""

    def __init__(self, arch: Arch, *, dtype: torch.dtype, device: str) -> None:
        self._arch, self._dtype, self._device = arch, dtype, device
        self._columns: dict[Policy, list[int]] = {}
        self._numbers: dict[Policy, int] = {}
        self._n_put = 0
        self._allocate(0)

    @property
    def n_columns(self) -> int:
        return len(self._free) + sum(map(len, self._columns.values()))

    def number(self, policy: Policy) -> int | None:
        """What marks a row of ``policy``; ``None`` if its adapter is not here."""
        return NOBODY if policy[1] is None else self._numbers.get(policy)

    def put(self, policy: Policy, adapter: Adapter) -> bool:
        """Take in an adapter that fits the model, in place of one of that name. True if the
        matrices are new ones (they have grown)."""
        self.drop(policy)
        if any(module == HEAD for _, module in adapter.pairs):
            return False  # Columns as long as the vocabulary would cost every row.
        rank, scale = adapter.spec.rank, adapter.spec.alpha / adapter.spec.rank
        if not all(bool((b * scale).isfinite().all()) for _, b in adapter.pairs.values()):
            return False
        needed = self.n_columns - len(self._free) + rank
        if needed > MAX_COLUMNS:
            return False
        grown = needed > self.n_columns
        if grown:
            self._grow(max(LEAST_COLUMNS, fill_up(needed)))
        columns, self._free = self._free[:rank], self._free[rank:]
        self._n_put += 1
        self._columns[policy], self._numbers[policy] = columns, self._n_put
        index = torch.tensor(columns, device=self._device)
        for (layer, group), stacked in self.layers.items():
            pairs = [adapter.pairs.get((layer, module)) for module in GROUPS[group]]
            for k, (pair, (_, b_SO)) in enumerate(zip(pairs, stacked.parts, strict=True)):
                a_IS = stacked.a_IKS[:, k * self.n_columns : (k + 1) * self.n_columns]
                if pair is None:
                    a_IS[:, index] = 0.0
                    b_SO[index] = 0.0
                    continue
                a_IS[:, index] = pair[0].t().to(self._device, self._dtype)
                b_SO[index] = (pair[1].t() * scale).to(self._device, self._dtype)
        self.owner_S[index] = self._n_put
        return grown

    def drop(self, policy: Policy) -> None:
        """Free an adapter's columns; unknown ones are ignored."""
        if columns := self._columns.pop(policy, None):
            del self._numbers[policy]
            self._free += columns

    def adapters(self, number_B: torch.Tensor) -> "StackedRows":
        """What is added to rows marked by ``number``."""
        return StackedRows(self, number_B)

    def _allocate(self, n: int) -> None:
        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=self._dtype, device=self._device)

        self.owner_S = torch.full((n,), -1, dtype=torch.int64, device=self._device)
        self.layers: dict[tuple[int, str], Stacked] = {}
        for group, (n_in, outs) in group_sizes(self._arch).items():
            ends = [sum(outs[: k + 1]) for k in range(len(outs))]
            for layer in range(self._arch.n_layers):
                self.layers[layer, group] = Stacked(
                    a_IKS=zeros(n_in, len(outs) * n),
                    parts=tuple(
                        (slice(end - n_out, end), zeros(n, n_out))
                        for end, n_out in zip(ends, outs, strict=True)
                    ),
                )
        self._free = list(range(n))

    def _grow(self, n: int) -> None:
        """New matrices of ``n`` columns; what is taken keeps its place."""
        old, owners, taken = self.layers, self.owner_S, self.n_columns
        free = self._free
        self._allocate(n)
        self._free = free + list(range(taken, n))
        self.owner_S[:taken] = owners
        for key, stacked in self.layers.items():
            before = old[key]
            k = len(stacked.parts)
            stacked.a_IKS.unflatten(1, (k, n))[:, :, :taken] = before.a_IKS.unflatten(1, (k, taken))
            for (_, b), (_, b_before) in zip(stacked.parts, before.parts, strict=True):
                b[:taken] = b_before


class StackedRows:
    """``model.Adapters`` of rows that each keep their own adapter's columns."""

    def __init__(self, stack: Stack, number_B: torch.Tensor) -> None:
        self._layers, self._n = stack.layers, stack.n_columns
        self._others_B1S = (number_B[:, None] != stack.owner_S).unsqueeze(1)

    def add(self, layer: int, group: str, x_ND: torch.Tensor, y_NO: torch.Tensor) -> torch.Tensor:
        """``y += keep(x A) B``, in place."""
        stacked = self._layers[layer, group]
        xa_BKS = (x_ND @ stacked.a_IKS).unflatten(1, (len(stacked.parts), self._n))
        xa_BKS = xa_BKS.masked_fill(self._others_B1S, 0.0)
        for k, (columns, b_SO) in enumerate(stacked.parts):
            y_NO[:, columns].addmm_(xa_BKS[:, k], b_SO)
        return y_NO
