"""Operation: one training-side request of one run, and the pass in which slices carry it out.

Left to others: which is next, and on which slices (``trainer``).
"""

from collections.abc import Callable
from dataclasses import dataclass

from plait.core.ids import OpId, RunId
from plait.core.substages import Kind
from plait.sim.costs.protocol import Costs
from plait.sim.jobs import Job
from plait.sim.worker import Worker

NO_ID = OpId("")


@dataclass(slots=True, kw_only=True, eq=False)
class Operation:
    """One training-side operation of one run."""

    job: Job
    kind: str
    """``Forward`` (the reference) or ``ForwardBackward``."""
    tokens: int
    samples: int
    costs: Costs
    sync_s: float = 0.0
    """The trainer's part of sending new weights, after the gradient."""
    n_slices: int = 1
    """Copies of the model that divide the work."""
    state_bytes: int = 0
    """Of the run on each worker."""
    offload: bool = False
    """Its state leaves the devices afterwards, to make room for rollout."""
    done: Callable[[], None]
    since_s: float = 0.0
    op_id: OpId = NO_ID
    overtaken: int = 0
    """By passes on some of its slices while others of them were taken."""

    @property
    def substage_kind(self) -> Kind:
        return Kind.REFERENCE if self.kind == "Forward" else Kind.TRAIN

    def seconds(self) -> float:
        """On its slices, each with its part."""
        tokens, samples = -(-self.tokens // self.n_slices), -(-self.samples // self.n_slices)
        if self.kind == "Forward":
            return self.costs.reference_s(tokens, samples)
        return self.costs.train_s(tokens, samples)


@dataclass(slots=True, kw_only=True, eq=False)
class Pass:
    """What some slices are doing together."""

    operations: list[Operation]
    workers: list[Worker]
    phases: list[tuple[Kind, float, float]]
    """Kind, seconds alone, FLOPs of each slice."""
    left: int = 0
    took_s: float = 0.0

    @property
    def runs(self) -> list[RunId]:
        """Whose gradients are in it."""
        return [operation.job.run_id for operation in self.operations]
