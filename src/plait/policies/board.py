"""Board: the sub-stages that a co-location policy moves about in its head.

``Board`` is what does not change during a search, ``Position`` a state of it: what is left of each
sub-stage, who runs where with which share, and the time that has passed. A position knows which
assignments are possible next and what comes of one; which is best is the policy's (``colocation``).

Invariants: at most two on a worker; shares of compute add up to at most 1, bytes to at most what
the worker has; whoever runs goes on to its end with its bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import combinations

from plait.core.colocation import ColocationView
from plait.core.errors import RequestError
from plait.core.ids import RunId, WorkerId
from plait.core.substages import Substage
from plait.profiles.slowdown import Slowdown

SPLITS = (0.25, 0.5, 0.75)
"""Shares of compute that are tried: devices offer a few budgets for which everything is recorded
beforehand (JigsawRL §4.2)."""
AT_ONCE = 2
"""Sub-stages on a worker: slowdowns are known for pairs."""
SIDE_BY_SIDE = 1.5
"""Work that two sub-stages get done together for one alone, at best: complements slow each other by
a third. For what lies beyond the window only."""
CANDIDATES = 4
"""Ready sub-stages of a worker that are looked at: those with the longest way before them."""
NOTHING_S = 1e-9

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


@dataclass(slots=True)
class Position:
    """A state of the board."""

    board: Board
    elapsed_s: float
    left_s: list[float]
    work_s: dict[WorkerId, float]
    """What is left for each worker in all."""
    n_before: list[int]
    on: dict[WorkerId, Assignment]
    """What runs on each worker."""
    away: tuple[int, ...]
    """What runs off the devices."""
    ready: dict[WorkerId, tuple[int, ...]]
    first: dict[WorkerId, Assignment] | None = None
    """The assignments with which the way to here began."""

    @classmethod
    def now(cls, board: Board) -> "Position":
        """The view as it is; what runs has no share yet."""
        position = cls(
            board=board,
            elapsed_s=0.0,
            left_s=[s.work_s for s in board.substages],
            work_s=dict.fromkeys(board.room, 0.0),
            n_before=list(board.n_before),
            on={},
            away=(),
            ready=dict.fromkeys(board.room, ()),
        )
        running = set(board.running)
        for i, substage in enumerate(board.substages):
            if substage.kind.on_device:
                position.work_s[substage.worker] += substage.work_s
            if board.n_before[i] == 0:
                position._admit(i, i in running and substage.kind.on_device)
        return position

    def _admit(self, i: int, runs: bool = False) -> None:
        substage = self.board.substages[i]
        if not substage.kind.on_device:
            self.away = (*self.away, i)
        elif runs:
            alone: Placed = (i, 1.0, self.board.held.get(i, substage.memory_bytes))
            self.on[substage.worker] = (*self.on.get(substage.worker, ()), alone)
        else:
            self.ready[substage.worker] = (*self.ready[substage.worker], i)

    def options(self, worker: WorkerId) -> list[Option]:
        """What may run on ``worker`` from now on."""
        board, ready = self.board, self.ready[worker]
        if len(ready) > CANDIDATES:
            ready = tuple(nlargest(CANDIDATES, ready, key=board.chain_s.__getitem__))
        return board.options(worker, self.on.get(worker, ()), ready)

    def after(self, chosen: dict[WorkerId, Assignment]) -> "Position":
        """The position when the next sub-stage has ended under ``chosen``."""
        board = self.board
        on = {**self.on, **chosen}
        ready = dict(self.ready)
        for worker, assignment in chosen.items():
            if ready[worker]:
                new = [i for i, _, _ in assignment]
                ready[worker] = tuple(i for i in ready[worker] if i not in new)
        speeds: list[tuple[int, float]] = []
        for assignment in on.values():
            if assignment:
                speeds += board.speeds(assignment)
        n_placed = len(speeds)
        speeds += [(i, 1.0) for i in self.away]
        left_s, work_s = self.left_s.copy(), self.work_s.copy()
        step_s = min([left_s[i] / speed for i, speed in speeds], default=0.0)
        ended = []
        for place, (i, speed) in enumerate(speeds):
            done_s = min(left_s[i], step_s * speed)
            left_s[i] -= done_s
            if place < n_placed:
                work_s[board.substages[i].worker] -= done_s
            if left_s[i] <= NOTHING_S:
                left_s[i] = 0.0
                ended.append(i)
        position = Position(
            board=board,
            elapsed_s=self.elapsed_s + step_s,
            left_s=left_s,
            work_s=work_s,
            n_before=self.n_before.copy(),
            on={w: tuple([p for p in a if p[0] not in ended]) for w, a in on.items()},
            away=tuple([i for i in self.away if i not in ended]),
            ready=ready,
            first=self.first if self.first is not None else on,
        )
        for i in ended:
            for j in board.followers[i]:
                position.n_before[j] -= 1
                if position.n_before[j] == 0:
                    position._admit(j)
        return position

    @property
    def over(self) -> bool:
        """True when nothing is left that could run."""
        return not self.away and not any(self.on.values()) and not any(self.ready.values())

    def score(self) -> tuple[float, float]:
        """Predicted critical path, and that of every run, weighted.

        ``C = max_p Σ_k T̂(k)``: what has passed, then the longest chain that is left or the work
        that is left on one worker, whichever takes longer.
        """
        board, left_s, path_s = self.board, self.left_s, self.board.path_s
        chain_s, run_of = board.chain_s, board.run_of
        chains = [(i, chain_s[i]) for ready in self.ready.values() for i in ready]
        chains += [(i, left_s[i] + path_s[i]) for i in self.away]
        for assignment in self.on.values():
            if assignment:
                speeds = board.speeds(assignment)
                chains += [(i, left_s[i] / speed + path_s[i]) for i, speed in speeds]
        longest: dict[RunId, float] = {}
        for i, way_s in chains:
            run_id = run_of[i]
            if way_s > longest.get(run_id, 0.0):
                longest[run_id] = way_s
        packed_s = max(self.work_s.values(), default=0.0) / SIDE_BY_SIDE
        weights = board.weights
        if weights:
            total = sum([s * weights.get(run, 1.0) for run, s in longest.items()])
        else:
            total = sum(longest.values())
        return (
            self.elapsed_s + max(max(longest.values(), default=0.0), packed_s),
            self.elapsed_s * len(longest) + total,
        )
