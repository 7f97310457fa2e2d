"""World: the clock, the devices and what happens between two events.

All events of one time run first; then the decisions that they have called for are made, each once;
then workers whose occupants have changed get their new rates. So a policy sees a moment as a whole.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

from plait.core.ids import WorkerId
from plait.sim.costs.protocol import Costs
from plait.sim.heap import Heap
from plait.sim.record import Record
from plait.sim.worker import Division, SlowdownModel, Worker

if TYPE_CHECKING:
    from plait.sim.jobs import Job

RESERVE = 0.1
"""Of a device's memory, for activations and fragments: vLLM's ``gpu_memory_utilization`` is 0.9 by
default, and micro-batches are chosen to fit what is left."""


class CostsOf(Protocol):
    """``sim.costs.roofline.costs_of``, or measured costs; ``constants`` is given where the setting
    has some."""

    def __call__(
        self,
        model: str,
        device: str,
        n: int,
        *,
        weights: Any = "full",
        replicas: int = 1,
        constants: Any = None,
    ) -> Costs: ...


class World:
    """What all parts of a simulation share."""

    def __init__(
        self,
        *,
        costs_of: CostsOf,
        slowdown: SlowdownModel,
        exact: bool,
        spans: bool,
        trace: list[dict[str, Any]] | None,
        policy: str,
        options: Mapping[str, Any],
        repeats: dict[Any, Any] | None = None,
    ) -> None:
        self.heap = Heap()
        self.exact, self.options = exact, options
        self.seed = int(options.get("seed", 0))
        self.record = Record(spans=spans, trace=trace, policy=policy, now=self.now)
        self.draws = 0 if exact or spans or "lost" in options else int(options.get("draws", 0))
        """Different rollouts of a job, see ``repeats``; 0: all are."""
        self.repeats = {} if repeats is None else repeats
        self.workers: list[Worker] = []
        self._costs_of, self.slowdown = costs_of, slowdown
        self._costs: dict[tuple[str, str, int, str, int], Costs] = {}
        self._dirty: dict[Worker, None] = {}
        self._asked: dict[Any, Callable[[], None]] = {}

    def now(self) -> float:
        return self.heap.now

    def costs(
        self, model: str, device: str, n: int, *, weights: str = "full", replicas: int = 1
    ) -> Costs:
        """Of a model on a slice, made once."""
        key = (model, device, n, weights, replicas)
        if key not in self._costs:
            self._costs[key] = self._costs_of(model, device, n, weights=weights, replicas=replicas)
        return self._costs[key]

    def misjudged(self, job: "Job") -> float:
        """By what factor a job's times are over- or underestimated by whoever has to decide:
        between 1/f and f, the same for all of its steps, with f the option ``misjudge``."""
        most = float(self.options.get("misjudge", 1.0))
        if most <= 1.0:
            return 1.0
        place = crc32(f"{self.seed}/{job.run_id}".encode()) / 2**32
        return float(most ** (2.0 * place - 1.0))

    def worker(
        self, name: str, n_devices: int, memory_bytes: int, division: Division = "share"
    ) -> Worker:
        """A new slice, with its reserve taken."""
        worker = Worker(
            worker_id=WorkerId(name),
            n_devices=n_devices,
            memory_bytes=memory_bytes,
            heap=self.heap,
            slowdown=self.slowdown,
            dirty=self._dirty,
            span=self.record.span,
            division=division,
        )
        worker.reserve("reserve", int(memory_bytes * RESERVE))
        self.workers.append(worker)
        return worker

    def ask(self, decide: Callable[[], None]) -> None:
        """Make a decision once this moment's events have run."""
        self._asked[decide] = decide

    def run(self, until_s: float = float("inf")) -> None:
        """Until nothing more happens, or a time."""
        self._settle()
        heap = self.heap
        while heap.now <= until_s and heap.step():
            self._settle()

    def _settle(self) -> None:
        while self._asked:
            decide = next(iter(self._asked))
            del self._asked[decide]
            decide()
        for worker in self._dirty:
            worker.replan()
        self._dirty.clear()
