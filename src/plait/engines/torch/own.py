"""Own: our short forward over mapped, fused weights, as the engines see a model (``base``)."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from plait.engines.torch.batch import Batch, attend
from plait.engines.torch.exact import check_exact, silu
from plait.engines.torch.kv import KV
from plait.engines.torch.model import Adapters, Rope, forward
from plait.engines.torch.packed import make_linear
from plait.engines.torch.train.batch import Packed
from plait.engines.torch.train.model import logprobs
from plait.engines.torch.train.params import RunParams
from plait.engines.torch.train.products import PLAIN, Exact
from plait.engines.torch.weights import load_weights


class OwnSampler:
    """``base.Sampler``."""

    shares = True

    def __init__(
        self,
        model_dir: str | Path,
        *,
        dtype: torch.dtype,
        device: str,
        cache: Path | None,
        on_layer: Callable[[], None],
        exact: bool,
        pack_layers: bool,
    ) -> None:
        if exact:
            check_exact(dtype, device)
        self.weights = load_weights(model_dir, dtype=dtype, device=device, cache=cache)
        self.arch, self.device, self.dtype = self.weights.arch, self.weights.device, dtype
        self._linear, self.least_rows = make_linear(self.weights, layers=pack_layers or exact)
        self._silu = silu if exact else F.silu
        self._rope = Rope(self.arch, self.device, dtype)
        self._on_layer = on_layer

    def hidden(self, batch: Batch, kv: KV, adapters: Adapters | None) -> torch.Tensor:
        """``h_ND`` of one step."""
        return forward(
            self.weights,
            batch.tokens_N,
            self._rope.at(batch.positions_N),
            attend(kv, batch),
            adapters=adapters,
            linear=self._linear,
            silu=self._silu,
            on_layer=self._on_layer,
        )

    def logits(self, h_RD: torch.Tensor) -> torch.Tensor:
        """``logits_RV``."""
        return self._linear(h_RD, self.weights.head, None)


class OwnTrainee:
    """``base.Trainee``."""

    kept = 1.0

    def __init__(
        self,
        model_dir: str | Path,
        *,
        dtype: torch.dtype,
        device: str,
        on_layer: Callable[[], None],
        exact: bool,
        recompute: bool,
    ) -> None:
        if exact:
            check_exact(dtype, device)
        self.weights = load_weights(model_dir, dtype=dtype, device=device)
        self.arch, self.device = self.weights.arch, self.weights.device
        self._by = Exact(make_linear(self.weights)[0]) if exact else PLAIN
        self._rope = Rope(self.arch, self.device, dtype)
        self._on_layer, self._recompute = on_layer, recompute

    def logprobs(self, batch: Packed, params: Sequence[RunParams | None]) -> torch.Tensor:
        """Log-probs ``(M,)``."""
        return logprobs(
            self.weights,
            self._rope,
            batch,
            params,
            self._on_layer,
            recompute=self._recompute,
            by=self._by,
        )
