"""Position: a state of the board that a co-location policy moves about in its head.

What is left of each sub-stage, who runs where with which share, and the time that has passed. A
position knows which assignments are possible next and what comes of one; which is best is the
policy's (``colocation``).

Invariant: whoever runs goes on to its end with its bytes. Left to others: what does not change
during a search (``board``).
"""

from dataclasses import dataclass
from heapq import nlargest

from plait.core.ids import RunId, WorkerId
from plait.policies.board import Assignment, Board, Option, Placed

SIDE_BY_SIDE = 1.5
"""Work that two sub-stages get done together for one alone, at best: complements slow each other by
a third. For what lies beyond the window only."""
CANDIDATES = 4
"""Ready sub-stages of a worker that are looked at: those with the longest way before them."""
NOTHING_S = 1e-9


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
