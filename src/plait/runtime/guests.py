"""Guests: policies that are sampled here without being a published version of a run of the launch.

A version that somebody has pinned, a checkpoint of a run that is not live, the base model by
itself: outside clients sample them. A guest has an id that no run can have, so it is no part of the
roster, waits at no gate, and no policy that divides the machine among runs sees it; it shares the
forward steps, and suspicion if it kills workers, like a run. How many are loaded at once, and whose
sample is next, is decided by whoever sends them here (``service.sample_lane``).
"""

from dataclasses import dataclass

from plait.core.ids import RunId
from plait.policies.routing import Policy

MARK = "~"
"""No run's name begins with it (``core.ids.RUN_NAME``)."""


def guest_id(name: str) -> RunId:
    """The id of the guest of that name."""
    return RunId(f"{MARK}{name}")


def is_guest(run_id: RunId) -> bool:
    return run_id.startswith(MARK)


@dataclass(slots=True)
class Served:
    """What a guest has had of the workers."""

    device_s: float = 0.0
    tokens: int = 0


class Guests:
    """Which adapters the rollout workers are to have for guests, and what each guest has had."""

    def __init__(self) -> None:
        self.paths: dict[Policy, str] = {}
        """Directories of what is loaded, or being loaded: a new worker loads them too."""
        self._served: dict[RunId, Served] = {}

    def charge(self, run_id: RunId, device_s: float, tokens: int) -> None:
        """A guest has been served."""
        served = self._served.setdefault(run_id, Served())
        served.device_s += device_s
        served.tokens += tokens

    def forget(self, run_id: RunId) -> None:
        """No adapter of the guest is loaded any more, so it is not served."""
        if not any(guest == run_id for guest, _ in self.paths):
            self._served.pop(run_id, None)

    def settle(self, run_id: RunId) -> Served:
        """What a guest has had since this was last asked."""
        return self._served.pop(run_id, Served())
