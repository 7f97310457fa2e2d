"""Resident: whose optimizer states are on a trainer's slices, and what bringing one there takes.

A state that would not fit beside those that are there has them taken off, the longest unused first.
Invariants: a destination is reserved before a move begins; state in use is never taken off.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

from plait.core.ids import RunId
from plait.sim.operation import Operation
from plait.sim.worker import Worker


class Resident:
    """States on the slices of one trainer."""

    def __init__(self, name: str, on: Mapping[RunId, Sequence[Worker]]) -> None:
        """``on``: the slices that each run trains on."""
        self._name, self._on = name, on
        self._bytes: OrderedDict[RunId, int] = OrderedDict()
        self._offload_s: dict[RunId, float] = {}

    def __contains__(self, run_id: RunId) -> bool:
        return run_id in self._bytes

    def ids(self) -> tuple[RunId, ...]:
        """Whose state is there."""
        return tuple(sorted(self._bytes))

    def on(self, worker: Worker) -> list[RunId]:
        """Whose state is on a slice."""
        return [run_id for run_id in self._bytes if worker in self._on[run_id]]

    def bytes_on(self, worker: Worker) -> int:
        """What those take."""
        return sum(self._bytes[run_id] for run_id in self.on(worker))

    def switch_s(self, operation: Operation) -> float:
        """Bringing its state here, and taking off whose place it needs."""
        if operation.job.run_id in self:
            return 0.0
        return operation.costs.load_s() + sum(self._offload_s[r] for r in self._evicted(operation))

    def bring(self, operation: Operation, using: Collection[RunId]) -> list[float]:
        """Have its state here; the moves that it takes, in seconds. ``using``: whose must stay."""
        run_id = operation.job.run_id
        moves_s: list[float] = []
        if run_id in self:
            self._bytes.move_to_end(run_id)
            return moves_s
        for other in self._evicted(operation, using):
            moves_s.append(self._offload_s[other])
            self.forget(other)
        for worker in self._on[run_id]:
            worker.reserve(self._what(run_id), operation.state_bytes)
        self._bytes[run_id] = operation.state_bytes
        self._offload_s[run_id] = operation.costs.offload_s()
        return [*moves_s, operation.costs.load_s()]

    def forget(self, run_id: RunId) -> None:
        """Its state is there no more."""
        if self._bytes.pop(run_id, None) is not None:
            for worker in self._on[run_id]:
                worker.release(self._what(run_id))

    def _evicted(self, operation: Operation, keep: Collection[RunId] = ()) -> list[RunId]:
        """Whose state has to go, the longest unused first."""
        short = {
            worker: operation.state_bytes - worker.free_bytes
            for worker in self._on[operation.job.run_id]
        }
        out: list[RunId] = []
        for run_id, n_bytes in self._bytes.items():
            if max(short.values()) <= 0:
                break
            here = [w for w in self._on[run_id] if short.get(w, 0) > 0]
            if here and run_id not in keep:
                out.append(run_id)
                for worker in self._on[run_id]:
                    if worker in short:
                        short[worker] -= n_bytes
        return out

    def _what(self, run_id: RunId) -> str:
        return f"{self._name}/{run_id}"
