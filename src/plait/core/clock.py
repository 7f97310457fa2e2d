"""Clock: time as a parameter. The live runtime passes a wall clock, the simulator a virtual one."""

from typing import Protocol


class Clock(Protocol):
    """Source of the present moment."""

    def now(self) -> float:
        """Seconds since an origin that stays fixed for the life of the process."""
        ...


class ManualClock:
    """A clock that moves only when told to (tests, replay)."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move forward; a negative step is a programming error."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back ({seconds} s)")
        self._now_s += seconds
