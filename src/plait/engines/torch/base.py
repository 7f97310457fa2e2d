"""Base: the base model as sampling and training see it, and which of the two ways it is run.

Our own forward where it knows the architecture, else ``transformers`` (``fallback``). An engine
knows a model's sizes and asks for hidden states, logits or log-probs; caches, adapters, batches and
losses are the same for both.

Shapes: N tokens of a step, D hidden, R rows, V vocabulary, M targets of a micro-batch.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch

from plait.core.errors import EngineError
from plait.engines.torch.batch import Batch
from plait.engines.torch.graphs import Graphs
from plait.engines.torch.kv import KV
from plait.engines.torch.lanes import OnLayer
from plait.engines.torch.model import Adapters
from plait.engines.torch.own import OwnSampler, OwnTrainee
from plait.engines.torch.sizes import Sizes
from plait.engines.torch.train.batch import Packed
from plait.engines.torch.train.params import RunParams
from plait.models.shape import check_architecture, why_not_own


class Sampler(Protocol):
    """What a rollout engine asks of a model."""

    arch: Sizes
    device: torch.device
    dtype: torch.dtype
    head_VD: torch.Tensor
    """The output layer's own matrix."""
    shares: bool
    """Rows may read the blocks that they have in common apart from their own (``parts``)."""
    least_rows: Callable[[], int]
    """Rows that a product has at least, for a row to have the same bits in any company."""

    side_by_side: bool
    """Parts of a step may be under way at once (``halves``)."""

    def hidden(
        self, batch: Batch, kv: KV, adapters: Adapters | None, on_layer: OnLayer
    ) -> torch.Tensor:
        """``h_ND`` of one step, whose keys and values are in ``kv`` afterwards. ``on_layer`` is
        called at each layer."""
        ...

    def logits(self, h_RD: torch.Tensor, adapters: Adapters) -> torch.Tensor:
        """``logits_RV`` of such rows, whose adapters these are."""
        ...

    def graphs(self, kv: KV) -> Graphs | None:
        """Decode steps over static buffers and this cache; ``None`` where this way has none."""
        ...


class Trainee(Protocol):
    """What a training engine asks of a model."""

    arch: Sizes
    device: torch.device
    head_VD: torch.Tensor
    kept: float
    """Activations that are held for the backward pass, by those of our own forward."""
    side_by_side: bool
    """Several micro-batches may be under way at once (``lanes``)."""

    def logprobs(
        self, batch: Packed, params: Sequence[RunParams | None], on_layer: OnLayer
    ) -> torch.Tensor:
        """Log-probs ``(M,)``, differentiable in the runs' parameters; ``None``: no adapter.
        ``on_layer`` is called at each layer, of the backward pass too."""
        ...


def open_sampler(
    model_dir: str | Path,
    *,
    dtype: torch.dtype,
    device: str,
    cache: Path | None,
    exact: bool,
    pack_layers: bool,
    by_transformers: bool,
) -> Sampler:
    """The model for a rollout engine; ``by_transformers`` whether or not our forward knows it."""
    if _is_own(model_dir, by_transformers, exact):
        return OwnSampler(
            model_dir,
            dtype=dtype,
            device=device,
            cache=cache,
            exact=exact,
            pack_layers=pack_layers,
        )
    from plait.engines.torch.fallback.model import TransformersModel

    return TransformersModel(model_dir, dtype=dtype, device=device, cache=cache)


def open_trainee(
    model_dir: str | Path,
    *,
    dtype: torch.dtype,
    device: str,
    exact: bool,
    recompute: bool,
    by_transformers: bool,
) -> Trainee:
    """The model for a training engine."""
    if _is_own(model_dir, by_transformers, exact):
        return OwnTrainee(
            model_dir,
            dtype=dtype,
            device=device,
            exact=exact,
            recompute=recompute,
        )
    from plait.engines.torch.fallback.model import TransformersModel

    return TransformersModel(model_dir, dtype=dtype, device=device, recompute=recompute)


def _is_own(model_dir: str | Path, by_transformers: bool, exact: bool) -> bool:
    """EngineError if the fallback would have to be exact: its sums have an order of their own."""
    why = why_not_own(check_architecture(Path(model_dir)))
    if exact and (why or by_transformers):
        raise EngineError(
            f"{model_dir} {why or 'is run through transformers'}: deterministic mode is for models "
            "of plait's own forward, run without it"
        )
    return not (why or by_transformers)
