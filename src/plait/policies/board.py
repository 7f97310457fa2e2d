"""Board: the sub-stages that a co-location policy moves about in its head, and what is known of
them whatever the moves: what follows what, what may run beside what, and how fast.

Invariants: at most two on a worker; shares of compute add up to at most 1, bytes to at most what
the worker has. Left to others: a state of the board (``position``).
"""

from collections.abc import Mapping, Sequence
from itertools import combinations

from plait.core.colocation import ColocationView
from plait.core.errors import RequestError
from plait.core.ids import WorkerId
from plait.core.substages import Substage
from plait.profiles.slowdown import Slowdown

SPLITS = (0.25, 0.5, 0.75)
"""Shares of compute that are tried: devices offer a few budgets for which everything is recorded
beforehand (JigsawRL §4.2)."""
AT_ONCE = 2
"""Sub-stages on a worker: slowdowns are known for pairs."""

Placed = tuple[int, float, int]
"""A sub-stage, its compute and its bytes."""
Assignment = tuple[Placed, ...]
"""What runs on one worker."""
Option = tuple[float, Assignment]
"""What could, with the negative of its progress: work done per second."""


class Board:
    """The sub-stages by number, with what precedes and follows each."""

    def __init__(self, view: ColocationView, slowdown: Slowdown) -> None:
        """RequestError where a sub-stage can never run, or waits for itself."""
        self.substages = view.substages
        self.number = {s.key: i for i, s in enumerate(view.substages)}
        self.room = {w.worker_id: w.memory_bytes for w in view.workers}
        self.weights = view.weights
        self.running = [self.number[key] for key in view.running if key in self.number]
        self.held = {self.number[k]: n for k, n in view.held_bytes.items() if k in self.number}
        self._slowdown = slowdown
        self._known: dict[tuple[int, int, float, float], float] = {}
        self._speeds: dict[Assignment, list[tuple[int, float]]] = {}
        self._options: dict[tuple[WorkerId, Assignment, tuple[int, ...]], list[Option]] = {}
        self.followers: list[list[int]] = [[] for _ in view.substages]
        self.n_before = [0] * len(view.substages)
        for i, substage in enumerate(view.substages):
            self._check(i)
            for key in substage.after:
                if (before := self.number.get(key)) is not None:
                    self.followers[before].append(i)
                    self.n_before[i] += 1
        self.path_s = self._paths()
        self.chain_s = [
            s.work_s + path_s for s, path_s in zip(view.substages, self.path_s, strict=True)
        ]
        """The same with its own work, while that has not begun."""
        self.run_of = [s.run_id for s in view.substages]
        self.alike = _classes(view.substages)
        """What two replicas' sub-stages have in common, as far as an assignment is concerned."""

    def _check(self, i: int) -> None:
        substage = self.substages[i]
        if not substage.kind.on_device:
            return
        room = self.room.get(substage.worker)
        if room is None:
            raise RequestError(f"{substage.key}: worker {substage.worker} is not among the view's")
        if max(substage.least_bytes, self.held.get(i, 0)) > room:
            raise RequestError(
                f"{substage.key} needs {substage.least_bytes} bytes at least, worker "
                f"{substage.worker} has {room}: use smaller micro-batches or a larger worker"
            )

    def _paths(self) -> list[float]:
        """Longest chain from each sub-stage on, all of it alone; its own work is not in it."""
        before = list(self.n_before)
        order = [i for i, n in enumerate(before) if n == 0]
        for i in order:
            for j in self.followers[i]:
                before[j] -= 1
                if before[j] == 0:
                    order.append(j)
        if len(order) < len(before):
            stuck = next(i for i, n in enumerate(before) if n > 0)
            raise RequestError(f"{self.substages[stuck].key} waits for itself")
        path_s = [0.0] * len(before)
        for i in reversed(order):
            path_s[i] = max(
                (self.substages[j].work_s + path_s[j] for j in self.followers[i]), default=0.0
            )
        return path_s

    def slow(self, placed: Placed, beside: int | None) -> float:
        """Slowdown of one beside another."""
        i, compute, n_bytes = placed
        wanted = self.substages[i].memory_bytes
        memory = min(1.0, n_bytes / wanted) if wanted > 0 else 1.0
        found = self._known.get(key := (i, -1 if beside is None else beside, compute, memory))
        if found is None:
            other = None if beside is None else self.substages[beside]
            found = self._slowdown(self.substages[i], other, compute, max(memory, 1e-6))
            self._known[key] = found
        return found

    def speeds(self, assignment: Assignment) -> list[tuple[int, float]]:
        """Work per second of each that runs on one worker."""
        if (known := self._speeds.get(assignment)) is None:
            known = self._speeds[assignment] = self._found_speeds(assignment)
        return known

    def _found_speeds(self, assignment: Assignment) -> list[tuple[int, float]]:
        if len(assignment) == 1:
            return [(assignment[0][0], 1.0 / self.slow(assignment[0], None))]
        a, b = assignment
        return [(a[0], 1.0 / self.slow(a, b[0])), (b[0], 1.0 / self.slow(b, a[0]))]

    def options(self, worker: WorkerId, placed: Assignment, ready: tuple[int, ...]) -> list[Option]:
        """``assignments`` with their progress."""
        key = (worker, placed, ready)
        if (known := self._options.get(key)) is None:
            known = self._options[key] = [
                (-sum([speed for _, speed in self.speeds(a)]), a)
                for a in self.assignments(worker, placed, ready)
            ]
        return known

    def assignments(
        self, worker: WorkerId, placed: Assignment, ready: Sequence[int]
    ) -> list[Assignment]:
        """All that may run on a worker next: those ``placed``, who keep their bytes, and room for
        ``ready`` ones."""
        fixed = {i: n_bytes for i, _, n_bytes in placed}
        found: list[Assignment] = []
        for n in range(min(AT_ONCE - len(placed), len(ready)), -1, -1):
            for new in combinations(ready, n):
                found += self._shared(self.room[worker], (*fixed, *new), fixed)
        return found

    def _shared(
        self, room: int, members: Sequence[int], fixed: Mapping[int, int]
    ) -> list[Assignment]:
        if len(members) == 0:
            return []
        if len(members) == 1:
            return [((members[0], 1.0, self._wanted(room, members[0], fixed)),)]
        a, b = members
        return [
            ((a, c, bytes_a), (b, 1.0 - c, bytes_b))
            for bytes_a, bytes_b in self._memory(room, a, b, fixed)
            for c in SPLITS
        ]

    def _memory(self, room: int, a: int, b: int, fixed: Mapping[int, int]) -> list[tuple[int, int]]:
        """Ways to divide a worker's memory: one takes all that it wants or its least, the other
        what is left."""
        want_a, want_b = self._wanted(room, a, fixed), self._wanted(room, b, fixed)
        if want_a + want_b <= room:
            return [(want_a, want_b)]
        least_a = fixed.get(a, self.substages[a].least_bytes)
        least_b = fixed.get(b, self.substages[b].least_bytes)
        ways = [(n, min(want_b, room - n)) for n in (want_a, least_a)]
        ways += [(min(want_a, room - n), n) for n in (want_b, least_b)]
        return list(dict.fromkeys(w for w in ways if w[0] >= least_a and w[1] >= least_b))

    def _wanted(self, room: int, i: int, fixed: Mapping[int, int]) -> int:
        return fixed.get(i, min(room, self.substages[i].memory_bytes))


def _classes(substages: Sequence[Substage]) -> list[int]:
    """A number for each, the same for those between which an assignment sees no difference."""
    number: dict[tuple[object, ...], int] = {}
    return [
        number.setdefault((s.run_id, s.kind, s.memory_bytes, s.least_bytes), len(number))
        for s in substages
    ]
