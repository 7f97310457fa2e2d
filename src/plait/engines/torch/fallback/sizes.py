"""Sizes of a model that is run through ``transformers``: each linear layer carries its adapter."""

from dataclasses import dataclass, replace

from plait.core.runs import ALL_LINEAR, LoraSpec
from plait.engines.torch.arch import Site, Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign(Sizes):
    """``linears``: a site's group is the dotted name of its module, and so is its only module."""

    linears: tuple[Site, ...]

    @property
    def order(self) -> str:
        return "module-A-B-1"

    @property
    def paths(self) -> frozenset[str] | None:
        return frozenset(site.group for site in self.linears)

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(leaf(site.group) for site in self.linears))

    def chosen(self, spec: LoraSpec) -> LoraSpec:
        """The default targets, a Llama's linear layers, mean all that there are."""
        return replace(spec, targets=self.targets) if set(spec.targets) == set(ALL_LINEAR) else spec


def leaf(path: str) -> str:
    """A module's own name."""
    return path.rpartition(".")[2]
