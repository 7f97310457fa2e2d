"""Own: our short forward over mapped, fused weights, as the engines see a model (``base``)."""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from plait.engines.torch.arch import head_place
from plait.engines.torch.batch import Batch, attend
from plait.engines.torch.exact import check_exact, silu
from plait.engines.torch.frame import Parts
from plait.engines.torch.graphs import Graphs, make_record
from plait.engines.torch.kv import KV
from plait.engines.torch.lanes import OnLayer
from plait.engines.torch.model import Adapters, Rope, forward
from plait.engines.torch.packed import make_linear
from plait.engines.torch.stack import Stack
from plait.engines.torch.train.batch import Packed
from plait.engines.torch.train.model import logprobs
from plait.engines.torch.train.params import RunParams
from plait.engines.torch.train.products import PLAIN, Exact
from plait.engines.torch.weights import load_weights


class OwnSampler:
    """``base.Sampler``."""

    shares = True
    side_by_side = True

    def __init__(
        self,
        model_dir: str | Path,
        *,
        dtype: torch.dtype,
        device: str,
        cache: Path | None,
        exact: bool,
        pack_layers: bool,
    ) -> None:
        if exact:
            check_exact(dtype, device)
        self.weights = load_weights(model_dir, dtype=dtype, device=device, cache=cache)
        self.arch, self.device, self.dtype = self.weights.arch, self.weights.device, dtype
        self.head_VD = self.weights.head
        self._linear, self.least_rows = make_linear(self.weights, layers=pack_layers or exact)
        self._exact, self._silu = exact, silu if exact else F.silu
        self._rope = Rope(self.arch, self.device, dtype)

    def hidden(
        self, batch: Batch, kv: KV, adapters: Adapters | None, on_layer: OnLayer
    ) -> torch.Tensor:
        """``h_ND`` of one step."""
        return forward(
            self.weights,
            batch.tokens_N,
            self._rope.at(batch.positions_N),
            attend(kv, batch),
            adapters=adapters,
            linear=self._linear,
            silu=self._silu,
            on_layer=on_layer,
        )

    def logits(self, h_RD: torch.Tensor, adapters: Adapters) -> torch.Tensor:
        """``logits_RV``."""
        logits_RV = self._linear(h_RD, self.weights.head, None)
        return adapters.add(*head_place(self.arch), h_RD, logits_RV)

    def graphs(self, kv: KV) -> Graphs | None:
        """Static buffers over ``kv``; deterministic mode has none."""
        if self._exact:
            return None
        parts = Parts(
            weights=self.weights,
            rope=self._rope,
            kv=kv,
            stack=Stack(self.arch, dtype=self.dtype, device=str(self.device)),
            linear=self._linear,
        )
        return Graphs(parts, make_record(self.device))


class OwnTrainee:
    """``base.Trainee``."""

    kept = 1.0
    side_by_side = True

    def __init__(
        self,
        model_dir: str | Path,
        *,
        dtype: torch.dtype,
        device: str,
        exact: bool,
        recompute: bool,
    ) -> None:
        if exact:
            check_exact(dtype, device)
        self.weights = load_weights(model_dir, dtype=dtype, device=device)
        self.arch, self.device = self.weights.arch, self.weights.device
        self.head_VD = self.weights.head
        self._by = Exact(make_linear(self.weights)[0]) if exact else PLAIN
        self._rope = Rope(self.arch, self.device, dtype)
        self._recompute = recompute

    def logprobs(
        self, batch: Packed, params: Sequence[RunParams | None], on_layer: OnLayer
    ) -> torch.Tensor:
        """Log-probs ``(M,)``."""
        return logprobs(
            self.weights,
            self._rope,
            batch,
            params,
            on_layer,
            recompute=self._recompute,
            by=self._by,
        )
