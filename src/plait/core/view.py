"""Views: what a policy is told. Frozen values of ids and numbers, no clocks, no handles.

Each policy has its own narrow view; the runtime keeps the facts and builds the view when asked.
Times are seconds on the runtime's clock; ``now`` is passed beside the view.
"""

from dataclasses import dataclass

from plait.core.ids import OpId, RunId, TenantId
from plait.core.runs import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One live run as every policy sees it."""

    run_id: RunId
    tenant_id: TenantId
    order: int
    """Position in the order of submission."""
    weight: float
    priority: int
    stage: Stage
    stage_since_s: float
    step: int
    """Steps committed so far."""
    served: float
    """Work received so far: device-seconds (falls back to tokens where none is measured)."""
    kv_blocks: int
    """Cache blocks that the run's next or current rollout is expected to hold on average."""
    kv_blocks_worst: int
    """The same if every sample ran to its limit."""
    evaluating: bool = False
    tpts_s: float = 0.0
    """Time per training step, of late; 0 before the first."""
    alone_s: float = 0.0
    """The same as expected without neighbours; 0 where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionView:
    """Facts for deciding which runs may roll out."""

    budget_blocks: int
    runs: tuple[RunView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """A training-side operation (or a bundle that must not be split) at the head of its run."""

    op_id: OpId
    run_id: RunId
    kind: str
    est_s: float
    """Expected service time."""
    tokens: int
    waiting_since_s: float
    rows: int = 0
    """What it adds to a pass that several runs share; 0 where it is to run by itself."""
    finishes: bool = False
    """It ends an update whose larger part, the gradient, has been done already."""
    switch_s: float = 0.0
    """Offloading who is on the worker and loading this run, where its state is elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchView:
    """Facts for deciding which training-side operation runs next on a free worker."""

    items: tuple[WorkItem, ...]
    runs: tuple[RunView, ...]
    resident: tuple[RunId, ...] = ()
    """Runs whose state is on the worker already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolWaitView:
    """Facts for deciding what becomes of a sample's cache while it waits for a tool."""

    run_id: RunId
    tokens: int
    """The sample's so far, its prompt included."""
    expected_wait_s: float
    recompute_s: float
    """What computing its keys and values again is expected to take."""
    idle_blocks: int
    """Blocks that nobody holds and whose content may still be wanted."""
    evicted_per_s: float
    """Such blocks that are being given up for others."""
