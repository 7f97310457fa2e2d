"""Worker: a slice of devices and what runs on it, each activity slowed down by its neighbours.

Progress is counted in an activity's own seconds, alone on the whole worker; between two changes of
who is here, or of what somebody does, each goes on at a constant rate. There is one event: the
first end.

Three ways to divide a worker. ``share``: equal parts of its compute, the whole where there is only
one. ``pause``: fixed work goes first and decoding waits for it, as in an engine that alternates.
``planned``: parts as a plan gave them.

Invariants: memory reserved never exceeds what there is; planned parts add up to at most 1.
Left to others: who runs here, and when.
"""

from collections.abc import Callable
from typing import Literal, Protocol

from plait.core.ids import WorkerId
from plait.core.substages import Kind, Substage
from plait.sim.heap import Event, Heap

Division = Literal["share", "pause", "planned"]

DONE_S = 1e-9
"""Work below this is rounding."""


class SlowdownModel(Protocol):
    """``profiles.slowdown``: time of ``own`` over its time alone."""

    def __call__(
        self, own: Substage, beside: Substage | None, compute: float, memory: float
    ) -> float: ...


class Activity(Protocol):
    """What a worker carries out."""

    name: str
    job: str
    compute: float
    """Share of the worker's compute that a plan gave it."""
    memory: float
    """Share of the memory that it would take, in (0, 1]."""
    left_s: float
    """Alone, until something happens."""

    @property
    def kind(self) -> Kind: ...

    @property
    def substage(self) -> Substage: ...

    def reached(self) -> None:
        """That much has been done."""
        ...

    def flops_done(self) -> float:
        """Since the last call."""
        ...


class Fixed:
    """Work of a known length: training, reference, a move."""

    __slots__ = (
        "_work_s", "compute", "done", "flops", "job", "kind", "left_s", "memory", "name",
        "substage", "whole_s",
    )  # fmt: skip

    def __init__(
        self,
        *,
        name: str,
        substage: Substage,
        seconds: float,
        done: Callable[["Fixed"], None],
        flops: float = 0.0,
        compute: float = 1.0,
        memory: float = 1.0,
    ) -> None:
        self.name, self.kind, self.job = name, substage.kind, str(substage.run_id)
        self.compute, self.memory = compute, memory
        self.substage = substage
        self.left_s = self.whole_s = self._work_s = seconds
        self.flops, self.done = flops, done

    def reached(self) -> None:
        self.done(self)

    @property
    def work_s(self) -> float:
        """In all."""
        return self._work_s

    def flops_done(self) -> float:
        done = self.flops * (1.0 - self.left_s / self.whole_s) if self.whole_s > 0 else self.flops
        self.flops -= done
        self.whole_s = self.left_s
        return done


class _Running:
    __slots__ = ("activity", "rate", "share", "since_s")

    def __init__(self, activity: Activity, now: float) -> None:
        self.activity, self.rate, self.share, self.since_s = activity, 0.0, 0.0, now


SpanSink = Callable[["Worker", Activity, float, float, float], None]
"""Of an activity on a worker: from, to, share of compute."""


class Worker:
    """A slice of devices."""

    def __init__(
        self,
        *,
        worker_id: WorkerId,
        n_devices: int,
        memory_bytes: int,
        heap: Heap,
        slowdown: SlowdownModel,
        dirty: dict["Worker", None],
        span: SpanSink,
        division: Division = "share",
    ) -> None:
        self.worker_id, self.n_devices, self.memory_bytes = worker_id, n_devices, memory_bytes
        self.division: Division = division
        self.reserved: dict[str, int] = {}
        self.peak_bytes = 0
        self.busy_s = 0.0
        self.lost = False
        self.on_lost: list[Callable[[], None]] = []
        self.on_back: list[Callable[[], None]] = []
        self._heap, self._slowdown, self._dirty, self._span = heap, slowdown, dirty, span
        self._running: dict[str, _Running] = {}
        self._at_s = 0.0
        self._event: Event | None = None

    @property
    def free_bytes(self) -> int:
        return self.memory_bytes - sum(self.reserved.values())

    def reserve(self, what: str, n_bytes: int) -> None:
        """Take memory, or take more or less of it than before; it must be free."""
        self.reserved[what] = n_bytes
        used = sum(self.reserved.values())
        assert used <= self.memory_bytes, f"{self.worker_id}: {used} of {self.memory_bytes} bytes"
        self.peak_bytes = max(self.peak_bytes, used)

    def release(self, what: str) -> None:
        """Give memory back."""
        self.reserved.pop(what, None)

    def running(self) -> list[Activity]:
        """What runs here, in order of its start."""
        return [r.activity for r in self._running.values()]

    def runs(self, name: str) -> bool:
        return name in self._running

    def start(self, activity: Activity) -> None:
        """Begin."""
        assert activity.name not in self._running, activity.name
        self.sync()
        self._running[activity.name] = _Running(activity, self._heap.now)
        self._dirty[self] = None

    def stop(self, name: str) -> None:
        """End; nothing happens where it does not run."""
        if name not in self._running:
            return
        self.sync()
        running = self._running.pop(name)
        self._close(running)
        self._dirty[self] = None

    def retire(self) -> None:
        """Nothing runs here any more: whoever ran is not told of what befalls it."""
        self.on_lost.clear()
        self.on_back.clear()

    def lose(self) -> None:
        """It fails: nothing goes on here."""
        self.sync()
        self.lost = True
        for call in self.on_lost:
            call()
        self._dirty[self] = None

    def recover(self) -> None:
        """It is back, empty but for the weights."""
        self.lost = False
        for call in self.on_back:
            call()
        self._dirty[self] = None

    def changed(self) -> None:
        """Shares, or what an activity does, are about to change or have changed."""
        self.sync()
        self._dirty[self] = None

    def sync(self) -> None:
        """Count what has been done until now."""
        now = self._heap.now
        dt = now - self._at_s
        self._at_s = now
        if dt <= 0.0 or not self._running:
            return
        busy = False
        for running in self._running.values():
            if running.rate > 0.0:
                busy = True
                left = running.activity.left_s - dt * running.rate
                running.activity.left_s = left if left > 0.0 else 0.0
        if busy:
            self.busy_s += dt

    def replan(self) -> None:
        """Rates from here on, and the next event."""
        self.sync()
        if self._event is not None:
            self._heap.cancel(self._event)
            self._event = None
        if not self._running:
            return
        soonest = float("inf")
        runs = list(self._running.values())
        for running, share in zip(runs, self._parts(runs), strict=True):
            rate = self._rate(running.activity, share, runs) if share > 0.0 else 0.0
            if (rate > 0.0) != (running.rate > 0.0) or share != running.share:
                self._close(running)
            running.rate, running.share = rate, share
            if rate > 0.0:
                soonest = min(soonest, running.activity.left_s / rate)
        if soonest < float("inf"):
            self._event = self._heap.after(soonest, self._reached)

    def cut(self, name: str) -> None:
        """What the activity does changes its kind from here on: a span ends."""
        self.sync()
        self._close(self._running[name])

    def _reached(self, _: object) -> None:
        self._event = None
        self.sync()
        self._dirty[self] = None
        for running in list(self._running.values()):
            activity = running.activity
            here = self._running.get(activity.name) is running
            if here and running.rate > 0.0 and activity.left_s <= DONE_S:
                activity.reached()

    def _parts(self, runs: list[_Running]) -> list[float]:
        """Share of compute of each."""
        if self.lost:
            return [0.0] * len(runs)
        if len(runs) == 1 and self.division != "planned":
            return [1.0]
        if self.division == "planned":
            return [r.activity.compute for r in runs]
        if self.division == "pause":
            fixed = [not r.activity.kind.rolls_out for r in runs]
            if any(fixed):
                first = fixed.index(True)
                return [1.0 if i == first else 0.0 for i in range(len(runs))]
        return [1.0 / len(runs)] * len(runs) if runs else []

    def _rate(self, own: Activity, share: float, runs: list[_Running]) -> float:
        """Own seconds per second. What several neighbours cost adds up, each as if alone beside."""
        if len(runs) == 1 and share == 1.0 and own.memory >= 1.0:
            return 1.0
        beside = [
            r.activity
            for r in runs
            if r.activity is not own and (self.division != "pause") and r.activity.compute > 0.0
        ]
        if not beside and share == 1.0 and own.memory >= 1.0:
            return 1.0
        alone = self._slowdown(own.substage, None, share, own.memory)
        total = alone
        for other in beside:
            both = self._slowdown(own.substage, other.substage, share, own.memory)
            total += max(0.0, both - alone)
        return 1.0 / total

    def _close(self, running: _Running) -> None:
        now, activity = self._heap.now, running.activity
        if running.rate > 0.0 and now > running.since_s:
            self._span(self, activity, running.since_s, now, running.share)
        running.since_s = now
