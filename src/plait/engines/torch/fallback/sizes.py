"""Sizes of a model that is run through ``transformers``: each linear layer carries its adapter."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from plait.core.runs import ALL_LINEAR, LoraSpec
from plait.engines.torch.sizes import Site, Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign(Sizes):
    """``linears``: a site's group is the dotted name of its module, and so is its only module.
    ``head`` is the output layer's; empty where that is none of them."""

    linears: tuple[Site, ...]
    head: str

    @property
    def sites(self) -> tuple[Site, ...]:
        return self.linears

    @property
    def order(self) -> str:
        return "module-A-B-1"

    @property
    def paths(self) -> frozenset[str] | None:
        return frozenset(site.group for site in self.sites)

    @property
    def targets(self) -> tuple[str, ...]:
        return _leaves(site.group for site in self.sites)

    def chosen(self, spec: LoraSpec) -> LoraSpec:
        """The default targets, those of a Llama's blocks, mean all but the head."""
        if set(spec.targets) != set(ALL_LINEAR):
            return spec
        targets = _leaves(site.group for site in self.sites if site.group != self.head)
        return replace(spec, targets=targets)


def _leaves(paths: Iterable[str]) -> tuple[str, ...]:
    """Modules' own names, each once."""
    return tuple(dict.fromkeys(path.rpartition(".")[2] for path in paths))
