"""Sites: where a base model's adapters add to, whichever way it is run."""

from plait.engines.torch.arch import Arch, Site, Sizes
from plait.engines.torch.fallback.sizes import Foreign
from plait.engines.torch.model import GROUPS, group_sizes


def sites(arch: Sizes) -> tuple[Site, ...]:
    """In the order of a run's parameters: by layer, then product."""
    if isinstance(arch, Foreign):
        return arch.linears
    assert isinstance(arch, Arch)
    return tuple(
        Site(
            layer=layer,
            group=group,
            n_in=n_in,
            modules=tuple(zip(GROUPS[group], outs, strict=True)),
        )
        for layer in range(arch.n_layers)
        for group, (n_in, outs) in group_sizes(arch).items()
    )
