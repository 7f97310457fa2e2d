"""Plans: what a policy answers. Frozen values that the runtime or the simulator applies."""

from dataclasses import dataclass
from enum import StrEnum

from plait.core.ids import OpId, RunId, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Why a run is not being served; shown to its owner as it stands."""

    run_id: RunId
    reason: str
    """A stable word: ``kv_budget``, ``barrier``, ``turn``, ``trainer_busy``, ``paused``."""
    detail: str = ""
    position: int = 0
    """Place in the queue, from 1; 0 where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPlan:
    """Runs that may start their rollout now, and why the others wait."""

    admit: tuple[RunId, ...] = ()
    waits: tuple[Wait, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchPlan:
    """The operation to run next (``None``: leave the worker free), and why the others wait."""

    op_id: OpId | None = None
    along: tuple[OpId, ...] = ()
    """Gradients of other runs that go through the model in the same pass."""
    waits: tuple[Wait, ...] = ()


class Keep(StrEnum):
    """How soon cached keys and values that nobody holds are given up when blocks are wanted."""

    KEEP = "keep"
    """After all others."""
    LEAVE = "leave"
    """In their turn, least recently used first."""
    DROP = "drop"
    """Before all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyPlan:
    """What becomes of the cache of one sample that waits for a tool, and why."""

    keep: Keep
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HomePlan:
    """The training worker that does a run's next update, and why."""

    worker_id: WorkerId
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesPlan:
    """Samples that go on at another worker (none: all stay), and why."""

    op_ids: tuple[OpId, ...] = ()
    source: WorkerId | None = None
    target: WorkerId | None = None
    kv: bool = False
    """Their keys and values go along; else they are computed again."""
    reason: str = ""
