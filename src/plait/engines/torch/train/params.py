"""Params: one run's LoRA parameters, gradient and moments, each in one flat fp32 buffer.

The matrices that training uses are views into the buffers, so that zeroing, clipping, an AdamW
step, a snapshot and a checkpoint are each one operation on one tensor. Runs share nothing.
``LoraSpec`` is checked here; arithmetic with the matrices is ``ops``', files are ``state``'s.

Shapes: R rank; K layers of a fused projection that carry an adapter; A is ``(K·R, in)``, the A
matrices of one fused projection one under the other; B is ``(out, R)`` per layer and lies
transposed in the buffers.
"""

import copy
import difflib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from plait.adapters.peft import Adapter, Key
from plait.core.errors import ModelError, RequestError
from plait.core.runs import MAX_RANK, TARGETS, LoraSpec
from plait.engines.torch.sizes import Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Where one checkpoint layer's pair lies: in the flat buffers and in its fused projection."""

    layer: int
    group: str
    module: str
    a_start: int
    b_start: int
    n_in: int
    n_out: int
    column: int
    """First output column of this layer in the fused projection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """The adapter of one fused projection: views of the parameters and of their gradient.

    ``rows[i]`` are the rows of ``a`` and ``columns[i]`` the columns of the projection's output that
    belong to ``bts[i]``.
    """

    a: torch.Tensor
    bts: tuple[torch.Tensor, ...]
    da: torch.Tensor
    dbts: tuple[torch.Tensor, ...]
    rows: tuple[slice, ...]
    columns: tuple[slice, ...]
    scale: float
    marker: torch.Tensor
    """An empty leaf that requires a gradient and never gets one: see ``ops``."""


def check_spec(spec: LoraSpec, names: Sequence[str] = TARGETS) -> None:
    """RequestError if no adapter of this shape can be made; ``names`` are the linear layers'."""
    if not 1 <= spec.rank <= MAX_RANK:
        raise RequestError(f"LoRA rank {spec.rank}: choose 1 to {MAX_RANK}")
    if not (math.isfinite(spec.alpha) and spec.alpha > 0):
        raise RequestError(f"LoRA alpha {spec.alpha}: choose a positive number")
    if not spec.targets:
        raise RequestError(f"LoRA targets are empty: choose from {', '.join(names)}")
    for name in spec.targets:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            known = ", ".join(names)
            raise RequestError(
                f"LoRA target {name!r} matches no linear layer: {guess}known: {known}"
            )


def lay_out(arch: Sizes, spec: LoraSpec) -> list[Part]:
    """Parts in buffer order: by layer, then fused projection, its A matrices before its B's."""
    parts, end = [], 0
    for site in arch.sites:
        chosen, column = [], 0
        for module, n_out in site.modules:
            if module.rpartition(".")[2] in spec.targets:
                chosen.append((module, n_out, column))
            column += n_out
        b_start = end + len(chosen) * spec.rank * site.n_in
        for i, (module, n_out, column) in enumerate(chosen):
            parts.append(
                Part(
                    layer=site.layer,
                    group=site.group,
                    module=module,
                    a_start=end + i * spec.rank * site.n_in,
                    b_start=b_start,
                    n_in=site.n_in,
                    n_out=n_out,
                    column=column,
                )
            )
            b_start += n_out * spec.rank
        end = b_start
    return parts


class RunParams:
    """Parameters ``flat``, gradient ``grad``, moments ``m`` and ``v`` of one run, equally long."""

    def __init__(self, arch: Sizes, spec: LoraSpec, device: torch.device) -> None:
        spec = arch.chosen(spec)
        check_spec(spec, arch.targets)
        self.spec = spec
        self.order = arch.order
        self.parts = lay_out(arch, spec)
        last = self.parts[-1]
        n = last.b_start + last.n_out * spec.rank
        self.flat, self.grad, self.m, self.v = (
            torch.zeros(n, dtype=torch.float32, device=device) for _ in range(4)
        )
        self.steps = 0
        """AdamW steps since the moments were zero; the bias correction's own counter."""
        self.version = 0
        self._fuse_all()

    def init(self) -> None:
        """Version 0: A uniform as PEFT draws it (Kaiming, a=√5), B zero, from the seed alone."""
        generator = torch.Generator().manual_seed(self.spec.seed)
        with torch.no_grad():
            for part in self.parts:
                a, b = self.pair(part)
                bound = 1 / math.sqrt(part.n_in)
                a.copy_(torch.empty(a.shape).uniform_(-bound, bound, generator=generator))
                b.zero_()

    def pair(self, part: Part) -> tuple[torch.Tensor, torch.Tensor]:
        """Views ``A (R, in), B (out, R)`` of one checkpoint layer."""
        r = self.spec.rank
        a = self.flat[part.a_start : part.a_start + r * part.n_in].view(r, part.n_in)
        bt = self.flat[part.b_start : part.b_start + part.n_out * r].view(r, part.n_out)
        return a, bt.T

    def beside(self) -> "RunParams":
        """The same parameters with a gradient of its own, zero, that may be thrown away."""
        other = copy.copy(self)
        other.grad = torch.zeros_like(self.grad)
        other._fuse_all()
        return other

    def to_adapter(self) -> Adapter:
        """The same pairs under their checkpoint names; views, not copies."""
        pairs: dict[Key, tuple[torch.Tensor, torch.Tensor]] = {
            (p.layer, p.module): self.pair(p) for p in self.parts
        }
        return Adapter(spec=self.spec, pairs=pairs)

    def set_adapter(self, adapter: Adapter) -> None:
        """Copy the adapter's pairs in. A layer that it leaves alone gets zeros in A and B, which
        training never moves (both gradients are zero). ModelError if a shape does not fit."""
        with torch.no_grad():
            for part in self.parts:
                mine = self.pair(part)
                theirs = adapter.pairs.get((part.layer, part.module))
                for i, name in enumerate("AB"):
                    if theirs is None:
                        mine[i].zero_()
                    elif theirs[i].shape != mine[i].shape:
                        raise ModelError(
                            f"adapter's lora_{name} of layer {part.layer} {part.module} is "
                            f"{tuple(theirs[i].shape)}, the base model needs {tuple(mine[i].shape)}"
                        )
                    else:
                        mine[i].copy_(theirs[i])

    def _by_projection(self) -> Iterator[tuple[tuple[int, str], list[Part]]]:
        found: dict[tuple[int, str], list[Part]] = {}
        for part in self.parts:
            found.setdefault((part.layer, part.group), []).append(part)
        yield from found.items()

    def _fuse_all(self) -> None:
        marker = torch.empty(0, device=self.flat.device, requires_grad=True)
        self.fused = {key: self._fuse(parts, marker) for key, parts in self._by_projection()}

    def _fuse(self, parts: list[Part], marker: torch.Tensor) -> Fused:
        r, n_in = self.spec.rank, parts[0].n_in

        def view(buffer: torch.Tensor, start: int, n_rows: int, n: int) -> torch.Tensor:
            return buffer[start : start + n_rows * n].view(n_rows, n)

        a, da = (view(x, parts[0].a_start, len(parts) * r, n_in) for x in (self.flat, self.grad))
        bts, dbts = (
            tuple(view(x, p.b_start, r, p.n_out) for p in parts) for x in (self.flat, self.grad)
        )
        return Fused(
            a=a,
            bts=bts,
            da=da,
            dbts=dbts,
            rows=tuple(slice(i * r, (i + 1) * r) for i in range(len(parts))),
            columns=tuple(slice(p.column, p.column + p.n_out) for p in parts),
            scale=self.spec.alpha / r,
            marker=marker,
        )
