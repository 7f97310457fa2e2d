"""Residents: models as runs. One is taken up when there is something to do for it, and let go again
when it is idle; the store knows it in between.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from plait.core.errors import PlaitError
from plait.core.ids import TenantId
from plait.core.runs import LoraSpec
from plait.jobs.launch import Launch
from plait.runtime.client import RunClient
from plait.service.hands import Down
from plait.service.launches import Launches
from plait.service.names import run_of
from plait.store.rows import Json, RunRow, RunStatus
from plait.store.store import Store
from plait.store.writer import GroupWriter

NEVER = 1 << 62
"""Steps between two checkpoints of a client's run that nobody asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a tenant's runs get of the machine."""

    weight: float = 1.0
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A model that was made, as the store has it."""

    model_id: str
    tenant_id: TenantId
    base_model: str
    lora: LoraSpec
    about: Json = field(default_factory=dict)
    progress: Json = field(default_factory=dict)
    status: RunStatus = RunStatus.ACTIVE
    created_at: float = 0.0
    updated_at: float = 0.0

    def is_like(self, base_model: str, lora: LoraSpec) -> bool:
        """True if an adapter of that shape fits this model."""
        shapes = [(s.rank, s.alpha, sorted(s.targets)) for s in (self.lora, lora)]
        return self.base_model == base_model and shapes[0] == shapes[1]


class Residents:
    """Models of all base models."""

    def __init__(
        self,
        launches: Launches,
        store: Store,
        writer: GroupWriter,
        *,
        share: Callable[[TenantId], Share],
    ) -> None:
        self.launches, self._store, self._writer = launches, store, writer
        self._share = share

    async def known(self, model_id: str) -> Known | None:
        """A model that was made, or none."""
        row = await self._writer.write(self._store.runs.find, run_of(model_id))
        return None if row is None else known_of(model_id, row)

    async def take_up(self, known: Known, *, anew: bool = False) -> tuple[Launch, RunClient]:
        """The model at its last committed version, or at version 0. Down if its base model is not
        there. ``anew``: without the gradients that it may have accumulated here."""
        try:
            launch = await self.launches.launch(known.base_model)
        except PlaitError as error:
            raise Down(f"{known.base_model} cannot be started: {error}") from error
        run_id, share = run_of(known.model_id), self._share(known.tenant_id)
        if launch.session.has_run(run_id):
            if not anew:
                return launch, launch.session.run(run_id)
            if not launch.session.let_go(run_id):
                raise Down("what was under way for it has not ended yet")
        try:
            client = await launch.session.create_run(
                run_id,
                lora=known.lora,
                weight=share.weight,
                priority=share.priority,
                checkpoint_every=NEVER,
                keep_last=1,
                tenant_id=known.tenant_id,
                about=known.about,
                samplable=False,
            )
        except PlaitError as error:
            if is_down(launch):
                raise Down(str(error)) from error
            raise
        return launch, client

    def let_go(self, launch: Launch, model_id: str) -> bool:
        """Free what an idle model holds; False while it is not idle."""
        return launch.session.let_go(run_of(model_id))

    async def ended(self, model_id: str, reason: str, now: float) -> None:
        """Its session is over: it takes no more."""
        await self._writer.write(
            self._store.runs.set_status, run_of(model_id), RunStatus.DONE, reason=reason, now=now
        )

    async def unmade(self, model_id: str, reason: str, now: float) -> None:
        """What was to make it has failed half-way."""
        await self._writer.write(
            self._store.runs.set_status, run_of(model_id), RunStatus.FAILED, reason=reason, now=now
        )


def is_down(launch: Launch) -> bool:
    """True once nothing can run there any more."""
    return launch.session.head.roster.closed is not None


def known_of(model_id: str, row: RunRow) -> Known:
    """A model as its run's row says it."""
    lora: dict[str, Any] = dict(row.spec["lora"])
    return Known(
        model_id=model_id,
        tenant_id=row.tenant_id,
        base_model=row.spec["base_model"],
        lora=LoraSpec(**{**lora, "targets": tuple(lora["targets"])}),
        about=dict(row.spec.get("about") or {}),
        progress=row.progress,
        status=row.status,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
