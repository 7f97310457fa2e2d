"""In flight: one sample operation that has been asked for and has not ended."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from plait.core.ids import WorkerId
from plait.core.operations import Sample, SampleResult
from plait.core.view import MovableSample
from plait.policies.routing import Policy
from plait.runtime import messages as m


@dataclass(slots=True)
class InFlight:
    """Where a sample is, and how far it may have got."""

    op: Sample
    future: asyncio.Future[SampleResult]
    worker: WorkerId | None = None
    """Who draws it."""
    target: WorkerId | None = None
    """Who goes on with it as soon as ``worker`` has given it up."""
    on_drawn: Callable[[m.Drawn], None] | None = None
    """Who is told of its tokens as they come."""
    n_steps: int = 0
    """Forward steps of its workers so far: none of its samples has drawn more."""

    @property
    def policy(self) -> Policy:
        return self.op.run_id, self.op.version

    def place(self, worker: WorkerId | None, n_steps: int = 0) -> None:
        """It is there from now on, so far drawn."""
        self.worker, self.target, self.n_steps = worker, None, n_steps

    def movable(self) -> MovableSample | None:
        """What a policy is told of it; ``None`` while nobody draws it, or it moves."""
        if self.worker is None or self.target is not None:
            return None
        n_drawn = min(self.n_steps, self.op.params.max_tokens)
        return MovableSample(
            op_id=self.op.op_id,
            worker_id=self.worker,
            n=self.op.n,
            tokens_known=len(self.op.prompt) + self.op.n * n_drawn,
            tokens_left=self.op.params.max_tokens - n_drawn,
        )
