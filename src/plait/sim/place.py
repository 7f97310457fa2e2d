"""Place: where a job runs, as the job sees it.

``full`` is one run's own devices, ``lora`` a base that runs share, ``tenant`` a part of a node
group that runs share.
"""

from typing import TYPE_CHECKING, Protocol

from plait.sim.fleet import Rollout

if TYPE_CHECKING:
    from plait.sim.jobs import Job


class Place(Protocol):
    """Where a job runs."""

    @property
    def idle(self) -> bool:
        """An engine that rolls out for the job alone has nothing to do. Never where runs share
        engines: others' rows are there instead."""
        ...

    def want_rollout(self, job: "Job") -> None:
        """The job is ready for its next rollout: call ``begin_rollout`` when it may."""
        ...

    def roll(self, job: "Job", rollout: Rollout) -> None:
        """Start a rollout."""
        ...

    def left_rollout(self, job: "Job", rollout: Rollout) -> None:
        """It has ended."""
        ...

    def want_update(self, job: "Job", rollout: Rollout) -> None:
        """Reference, training and weight sync of a batch; then ``committed``."""
        ...

    def ended(self, job: "Job") -> None:
        """The job is over: nothing of it is left here."""
        ...
