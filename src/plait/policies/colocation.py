"""Co-location: which sub-stages of different runs share a worker, and how it is divided (JigsawRL
§4.2, §4.4).

``LookAhead`` plays the next few decisions out in its head: from the frontier of ready sub-stages it
tries running them alone or in pairs, with discrete splits of compute and of memory, retires what
ends first, admits what follows, and goes on for a window. It takes the beginning of the way with
the shortest predicted critical path. ``Greedy`` takes what makes most progress right now.

Invariants: memory and compute are never exceeded; what runs is never stopped; while a worker has
room and something ready it is not left idle; what has been passed over ``AGE`` times goes first;
every ready sub-stage that waits has a reason. Workers on which the same sub-stages of the same runs
stand get the same answer, as they are replicas of the same runs.

Left to others: moving samples between workers (``merging``), dividing work (``balancing``), and how
long sub-stages take (``profiles``).
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from heapq import nsmallest

from plait.core.colocation import ColocationPlan, ColocationView, Share
from plait.core.ids import RunId, WorkerId
from plait.core.plan import Wait
from plait.policies.board import Assignment, Board, Option
from plait.policies.position import Position
from plait.policies.protocol import State
from plait.profiles.slowdown import Analytic, Slowdown

AGE = 8
"""Times that a ready sub-stage sees others begin on its worker before it goes first."""
WIDTH = 3
"""Ways that are followed at once; more found nothing better in random workloads."""
DEPTH = 4
"""Decisions ahead: a step of a synchronous run has about four sub-stages on the device."""
BRANCHES = 6
"""Assignments that are followed from one position, those with most progress first."""

WORKER_BUSY = "worker_busy"

Choice = dict[WorkerId, Assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAhead:
    """Bounded search for the shortest critical path."""

    name: str = "look-ahead"
    slowdown: Slowdown = field(default_factory=Analytic)
    width: int = WIDTH
    depth: int = DEPTH
    branches: int = BRANCHES

    def decide(
        self, view: ColocationView, state: State, now: float
    ) -> tuple[ColocationPlan, State]:
        """Shares from now until the next sub-stage ends."""
        board = Board(view, self.slowdown)
        beam = [Position.now(board)]
        passed = _passed(board, state)
        for ahead in range(self.depth):
            found: list[Position] = []
            for position in beam:
                if position.over:
                    found.append(position)
                    continue
                urgent = passed if ahead == 0 else frozenset[int]()
                choices = _choices(position, urgent, self.branches)
                found += [position.after(choice) for choice in choices]
            beam = nsmallest(self.width, found, key=Position.score)
        best = beam[0]
        return _plan(board, best.first or {}, best.score()[0], state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """Most progress right now: the baseline of JigsawRL Fig. 11."""

    name: str = "greedy"
    slowdown: Slowdown = field(default_factory=Analytic)

    def decide(
        self, view: ColocationView, state: State, now: float
    ) -> tuple[ColocationPlan, State]:
        """Shares from now until the next sub-stage ends."""
        board = Board(view, self.slowdown)
        position = Position.now(board)
        choice = next(iter(_choices(position, _passed(board, state), 1)), {})
        then = position.after(choice)
        return _plan(board, then.first or {}, then.score()[0], state)


def _choices(position: Position, urgent: Collection[int], most: int) -> list[Choice]:
    """Up to ``most`` ways to go on, by progress; each settles every worker that may change."""
    ways: list[tuple[float, Choice]] = [(0.0, {})]
    for workers in _alike(position):
        options = _options(position, workers[0], urgent)
        if not options:
            continue
        n = len(workers)
        costs = [cost + progress * n for cost, _ in ways for progress, _ in options]
        longer: list[tuple[float, Choice]] = []
        for k in nsmallest(most, range(len(costs)), key=costs.__getitem__):
            choice = dict(ways[k // len(options)][1])
            option = options[k % len(options)][1]
            for worker in workers:
                choice[worker] = _matching(position, option, workers[0], worker)
            longer.append((costs[k], choice))
        ways = longer
    return [choice for _, choice in ways]


def _options(position: Position, worker: WorkerId, urgent: Collection[int]) -> list[Option]:
    """Assignments of a worker with the negative of their progress."""
    options = position.options(worker)
    if not urgent:
        return options
    due = [option for option in options if any(i in urgent for i, _, _ in option[1])]
    return due or options


def _alike(position: Position) -> list[list[WorkerId]]:
    """Workers with the same frontier, together."""
    found: dict[tuple[object, ...], list[WorkerId]] = {}
    alike, room = position.board.alike, position.board.room
    for worker in position.ready:
        if stand := _standing(position, worker):
            bytes_ = tuple([n for _, _, n in position.on.get(worker, ())])
            what = tuple([alike[i] for i in stand])
            found.setdefault((room[worker], bytes_, what), []).append(worker)
    return list(found.values())


def _standing(position: Position, worker: WorkerId) -> list[int]:
    """What runs on a worker, then what is ready there."""
    return [*[i for i, _, _ in position.on.get(worker, ())], *position.ready[worker]]


def _matching(position: Position, model: Assignment, of: WorkerId, worker: WorkerId) -> Assignment:
    """The assignment of worker ``of`` with the sub-stages of another with the same frontier."""
    if worker == of:
        return model
    twin = dict(zip(_standing(position, of), _standing(position, worker), strict=True))
    return tuple([(twin[i], compute, n_bytes) for i, compute, n_bytes in model])


def _passed(board: Board, state: State) -> frozenset[int]:
    """Ready sub-stages that others have overtaken too often."""
    over: dict[str, int] = state.get("passed", {})
    return frozenset(i for key, i in board.number.items() if over.get(key, 0) >= AGE)


def _plan(
    board: Board, chosen: Choice, predicted_s: float, state: State
) -> tuple[ColocationPlan, State]:
    shares: list[Share] = []
    runs: set[int] = set()
    begun: set[WorkerId] = set()
    for worker in sorted(chosen):
        for i, compute, n_bytes in chosen[worker]:
            key = board.substages[i].key
            shares.append(Share(key=key, compute=compute, memory_bytes=n_bytes))
            runs.add(i)
            if i not in board.running:
                begun.add(worker)
    before: dict[str, int] = state.get("passed", {})
    passed: dict[str, int] = {}
    waits: dict[RunId, Wait] = {}
    for i, substage in enumerate(board.substages):
        if i in runs or board.n_before[i] or not substage.kind.on_device:
            continue
        passed[substage.key] = before.get(substage.key, 0) + (substage.worker in begun)
        if substage.run_id not in waits:
            others = sorted({board.substages[j].run_id for j, _, _ in chosen[substage.worker]})
            detail = f"{substage.kind} waits on {substage.worker} for {' and '.join(others)}"
            waits[substage.run_id] = Wait(run_id=substage.run_id, reason=WORKER_BUSY, detail=detail)
    plan = ColocationPlan(
        shares=tuple(shares), waits=tuple(waits.values()), predicted_s=predicted_s
    )
    return plan, {"passed": passed}
