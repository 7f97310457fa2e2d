"""Ticket: a sample of an outside client in a lane: whose it is, what it draws from, what it may
have and what it has used.
"""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from plait.core.ids import OpId, RunId, TenantId
from plait.core.operations import Sample, Sampled, SampleResult
from plait.policies.routing import Policy
from plait.runtime.guests import guest_id
from plait.service.work import SampleWork


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is sampled. ``run`` is whose it is for shares and accounts; no ``directory``: the base
    model."""

    tenant_id: TenantId
    base_model: str
    run: str = ""
    policy: str = ""
    """Names the weights, for ever, with ``version``."""
    version: int | None = None
    directory: Path | None = None

    @property
    def guest(self) -> Policy:
        """As the workers are told of it. Every tenant has its own, even of the base model: what
        one tenant's samples do to a worker is never laid to another's."""
        name = f"{self.tenant_id}/{self.policy or self.base_model}"
        return guest_id(name), None if self.directory is None else self.version or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a tenant, and a run of it, is entitled to."""

    weight: float = 1.0
    priority: int = 0
    run_weight: float = 1.0


class Hold(Protocol):
    """A tenant is over a limit (``service.limits``)."""

    @property
    def reason(self) -> str: ...

    @property
    def retry_after_s(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a sample has used."""

    source: Source
    prompt_tokens: int
    sampled_tokens: int
    device_s: float


@dataclass(slots=True, eq=False)
class Ticket:
    """One sample in the lane, for whoever asks where it is."""

    source: Source
    work: SampleWork
    op_id: OpId
    cost: float
    go: asyncio.Future[None]
    """Done when it may be drawn: its adapter is loaded, and entered."""
    state: Literal["new", "parked", "loading", "drawing"] = "new"

    @property
    def flow(self) -> tuple[str, str]:
        return self.source.tenant_id, self.source.run


def operation(
    work: SampleWork,
    op_id: OpId,
    run_id: RunId,
    version: int | None,
    *,
    watched: bool = False,
) -> Sample:
    """What the engine is to do for a client."""
    return Sample(
        op_id=op_id,
        run_id=run_id,
        version=version,
        prompt=work.prompt,
        n=work.n,
        params=work.params,
        prompt_logprobs=work.prompt_logprobs or work.topk_prompt > 0,
        topk_logprobs=max(work.topk_sample, work.topk_prompt),
        prompt_targets=() if work.targets is None else work.targets.rows(),
        prompt_draws=work.prompt_draws,
        watched=watched,
    )


def as_asked(result: SampleResult, work: SampleWork) -> SampleResult:
    """The engine ranks tokens equally deep in prompt and samples; who asked for less gets that."""
    if work.topk_sample == work.topk_prompt:
        return result
    samples = tuple(_cut(s, work.topk_sample) for s in result.samples)
    k = work.topk_prompt
    return replace(
        result, samples=samples, prompt_topk=tuple(r[:k] for r in result.prompt_topk) if k else ()
    )


def _cut(sample: Sampled, k: int) -> Sampled:
    return replace(sample, topk=tuple(ranked[:k] for ranked in sample.topk) if k else ())
