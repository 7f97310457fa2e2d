"""Sizes: what the engines need to know of any decoder, whichever way it is run, and the sites that
its adapters add to.

Our own forward's are an ``Arch``, those of a model through ``transformers`` a ``Foreign``.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from plait.core.runs import TARGETS, LoraSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One product that adapters add to: a linear layer of the checkpoint, or several fused."""

    layer: int
    group: str
    n_in: int
    modules: tuple[tuple[str, int], ...]
    """Name and output size of each linear layer, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes(ABC):
    """What the engines need to know of any decoder."""

    vocab_size: int
    hidden: int
    inter: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    max_context: int

    @property
    def q_size(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.n_kv_heads * self.head_dim

    @property
    @abstractmethod
    def sites(self) -> tuple[Site, ...]:
        """In the order of a run's parameters: by layer, then product; the head's comes last."""

    @property
    def order(self) -> str:
        """Names the order of the flat buffers (``params.lay_out``) in files of moments: raise it
        when that changes."""
        return "layer-projection-A-B-1"

    @property
    def paths(self) -> frozenset[str] | None:
        """Dotted names of the linear layers; ``None``: those of a Llama and its head."""
        return None

    def chosen(self, spec: LoraSpec) -> LoraSpec:
        """``spec`` with the targets that it means here."""
        return spec

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of linear layers that an adapter can have."""
        return TARGETS
