"""Views: what a policy is told. Frozen values of ids and numbers, no clocks, no handles.

Each policy has its own narrow view; the runtime keeps the facts and builds the view when asked.
Times are seconds on the runtime's clock; ``now`` is passed beside the view.
"""

from dataclasses import dataclass

from plait.core.ids import OpId, RunId, TenantId, WorkerId
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeView:
    """Facts for deciding which training worker does a run's updates. It is between two of them."""

    run_id: RunId
    home: WorkerId | None
    """Where its last ones were done."""
    others: tuple[tuple[WorkerId, int], ...]
    """Each worker, and the live runs that it has besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLoad:
    """One rollout worker."""

    worker_id: WorkerId
    n_samples: int
    """Under way, those on their way to it included."""
    n_waiting: int
    """Of these, as last heard of: for want of room, no step computes them."""
    step_s: float
    """Length of its last forward steps; 0 before the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovableSample:
    """A request that could go on elsewhere."""

    op_id: OpId
    worker_id: WorkerId
    n: int
    tokens_known: int
    """At most: its prompt's, and what each of its samples has drawn."""
    tokens_left: int
    """Until its limit, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesView:
    """Facts for deciding which samples go on at another worker."""

    workers: tuple[RolloutLoad, ...]
    samples: tuple[MovableSample, ...]
    """In the order in which they were asked for."""
    max_seqs: int
    """Samples in one forward step of each worker."""
    lends: bool
    """What an idle worker would compute with is with the others meanwhile: cores, or a device."""
    s_per_token: float
    """Of computing keys and values again, at most."""
    kv_bytes_per_token: int
