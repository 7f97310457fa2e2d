"""A sample lane over real workers with the scripted engine, for tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from plait.core.ids import LOCAL_TENANT, RunId, TenantId
from plait.core.operations import AdamParams, Datum, SamplingParams
from plait.policies.registry import make
from plait.runtime.client import RunClient
from plait.runtime.session import Session
from plait.runtime.settings import Settings
from plait.service.sample_lane import SampleLane, lane_of
from plait.service.ticket import Source
from plait.service.work import SampleWork

PROMPT = (5, 6, 7, 8)


class Silent:
    """A journal that keeps nothing."""

    def span(self, worker: object, span: object) -> None: ...

    def event(self, run_id: RunId | None, kind: str, **detail: object) -> None: ...

    def keeps(self, kind: str) -> bool:
        return True

    def decision(self, kind: str, view: object, state: object, plan: object) -> None: ...


@asynccontextmanager
async def lane(
    directory: Path, model: Path, *, engine: str = "scripted", workers: int = 1, **options: Any
) -> AsyncIterator[tuple[Session, SampleLane]]:
    """A session on ``model`` and the lane of its workers."""
    settings = Settings(engine=engine, kv_blocks=256, cores=2, max_seqs=8, rollout_workers=workers)
    session = Session(
        directory,
        model=str(model),
        sharing=make("plait"),
        settings=settings,
        journal=Silent(),
    )
    async with session:
        yield session, lane_of(session.head, directory / "pins", **options)


def work(
    prompt: tuple[int, ...] = PROMPT, n: int = 1, max_tokens: int = 6, **over: Any
) -> SampleWork:
    """A sample; ``seed`` and the like go to its parameters."""
    ours = {k: over.pop(k) for k in list(over) if k in SampleWork.__slots__}
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **over)
    return SampleWork(prompt=prompt, n=n, params=params, **ours)


def base(model: Path, tenant: str = "local") -> Source:
    return Source(tenant_id=TenantId(tenant), base_model=str(model))


def version(
    model: Path, run: RunClient, *, of: int | None = None, tenant: str = LOCAL_TENANT
) -> Source:
    """A run's committed version, or an older one."""
    number = run.version if of is None else of
    run_id = run.facts.spec.run_id
    return Source(
        tenant_id=TenantId(tenant),
        base_model=str(model),
        run=run_id,
        policy=run_id,
        version=number,
        directory=Path(run.facts.version_path(number)),
    )


async def learn(run: RunClient, token: int) -> None:
    """One step that makes ``token`` likelier after the prompt."""
    n = len(PROMPT)
    datum = Datum(
        input_tokens=PROMPT,
        target_tokens=[token] * n,
        mask=[True] * n,
        inputs={"weights": [1.0] * n},
    )
    await run.forward_backward([datum], "cross_entropy")
    await run.optim_step(AdamParams(learning_rate=0.3))
