"""Pace: how long a run's steps take of late, and how long they would take without neighbours.

Nobody can see on a shared machine how fast a run would be alone. What is known is how long each
step was *in service*: from one commit to the next, less what it waited for admission and for the
trainer. Neighbours can only lengthen that, so the least of it bounds the time alone from above, and
equals it once a step has had the machine to itself.
"""

from dataclasses import dataclass

from plait.core.runs import Stage

RECENT = 0.5
"""Weight of the latest step in ``tpts_s``: two steps after a change most of it is about now."""


@dataclass(slots=True, kw_only=True)
class Pace:
    """Of one run; owned by its facts."""

    tpts_s: float = 0.0
    """Fading mean of the last steps, waits included; 0 before the first."""
    alone_s: float = 0.0
    """Least time in service; 0 before the first step."""
    _began_s: float | None = None
    _stage: Stage = Stage.IDLE
    _since_s: float = 0.0
    _waited_s: float = 0.0

    def staged(self, stage: Stage, now: float) -> None:
        """The run is in ``stage`` from now on."""
        if self._began_s is None:
            self._began_s = now
        if self._stage in (Stage.WAIT_ROLLOUT, Stage.WAIT_TRAIN):
            self._waited_s += now - self._since_s
        self._stage, self._since_s = stage, now

    def stepped(self, now: float) -> None:
        """A step has been committed."""
        self.staged(self._stage, now)
        began_s, self._began_s = self._began_s, now
        waited_s, self._waited_s = self._waited_s, 0.0
        if began_s is None or now <= began_s:
            return
        took_s = now - began_s
        self.tpts_s = took_s if not self.tpts_s else self.tpts_s + RECENT * (took_s - self.tpts_s)
        served_s = took_s - waited_s
        if served_s > 0.0:
            self.alone_s = min(self.alone_s or served_s, served_s)

    def spoiled(self) -> None:
        """Its owner has held the run back: the step under way says nothing."""
        self._began_s, self._waited_s = None, 0.0
