"""Led: a job that has not ended, as the desk leads it: what its owner wants and where it stands."""

import asyncio
from dataclasses import dataclass, field

from plait.jobs.launch import Launch
from plait.jobs.spec import JobSpec
from plait.service.ports import Waiting
from plait.store.jobs import JobRow


@dataclass(slots=True, kw_only=True)
class Led:
    """One job."""

    row: JobRow
    spec: JobSpec
    waits: Waiting = field(default_factory=Waiting)
    """Why it has not begun."""
    launch: Launch | None = None
    """The one that it has joined last."""
    placed: bool = False
    """It counts among its tenant's runs."""
    paused: bool = False
    held: str = ""
    """Why its tenant's work is held back, while it is."""
    spent: tuple[float, int] = (0.0, 0)
    """Device-seconds and tokens that its tenant's limits know of."""
    doom: str | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None

    @property
    def joined(self) -> Launch | None:
        """The launch that it is in now."""
        launch = self.launch
        return launch if launch is not None and self.row.job_id in launch.specs else None

    def hold(self) -> None:
        """Tell its launch whether it may go on. A held job gives its cache back first: nobody
        waits for it."""
        if (launch := self.joined) is None:
            return
        if self.paused or self.held:
            launch.pause(self.row.job_id, at_once=False)
        else:
            launch.resume(self.row.job_id)
