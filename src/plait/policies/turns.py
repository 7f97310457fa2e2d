"""Turns: which parked sample of outside clients goes to the engine next.

Start-time fair queueing in three steps, each O(log n) in what waits there: a priority, a tenant of
it, a run of the tenant; then that run's oldest sample. Every tenant and every run has a *tag*, its
virtual time: a sample raises it by cost over weight when it is taken, and by the difference when
its true cost is known. The lowest tag goes next. The level's own virtual time V is the tag of
whoever was served last.

Invariants: of two that both wait all the time, service per weight differs by no more than one
sample of each (Goyal, Vin and Cheng 1996, theorem 1); who comes, or comes back, starts at V at the
earliest, so no claim on the past; samples of one run keep their order; a lower priority that waits
gets at least one turn after ``AGE_GRANTS`` of higher ones. Draws no number and reads no clock.

Left to others: how much fits (``service.sample_lane``), and what a sample costs.
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field

from plait.policies.fairness import AGE_GRANTS, MIN_WEIGHT

SLACK = 64
"""Outdated heap entries and idle members that are worth no sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Whose turn it is."""

    item: str
    tenant: str
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a parked sample stands."""

    ahead: int
    """Samples of its run before it, at most."""
    parked: int
    """All that wait."""
    held: bool
    """Its run, or its tenant, is out of turn for now."""


@dataclass(slots=True)
class _Member:
    weight: float
    tag: float
    waits: bool = False
    mark: int = -1
    """Of its one heap entry that counts."""


class Level:
    """Members in the order of their tags."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._now = 0.0
        self._n_marks = 0
        self._n_waiting = 0
        self._n_kept = 0
        """Idle members that the last sweep could not drop."""

    def __len__(self) -> int:
        return self._n_waiting

    def enter(self, key: str, weight: float) -> None:
        """It has something to be served from now on."""
        member = self._members.get(key)
        if member is None:
            member = self._members[key] = _Member(weight, self._now)
        member.weight = max(weight, MIN_WEIGHT)
        if not member.waits:
            member.waits, member.tag = True, max(member.tag, self._now)
            self._n_waiting += 1
            self._push(key, member)

    def leave(self, key: str) -> None:
        """It has nothing, or may not be served."""
        member = self._members.get(key)
        if member is not None and member.waits:
            member.waits, member.mark = False, -1
            self._n_waiting -= 1
            self._sweep()

    def first(self) -> str | None:
        """Whose turn it is."""
        while self._heap:
            _, mark, key = self._heap[0]
            member = self._members.get(key)
            if member is not None and member.mark == mark:
                return key
            heapq.heappop(self._heap)
        return None

    def serve(self, key: str, cost: float) -> None:
        """It is served: V comes up to its tag."""
        self._now = max(self._now, self._members[key].tag)
        self.charge(key, cost)

    def charge(self, key: str, cost: float) -> None:
        """It has cost so much more, or less, than it was charged with."""
        member = self._members.get(key)
        if member is None:  # idle, and V has passed it: nothing of it counts any more
            return
        member.tag += cost / member.weight
        if member.waits:
            self._push(key, member)

    def _push(self, key: str, member: _Member) -> None:
        self._n_marks += 1
        member.mark = self._n_marks
        heapq.heappush(self._heap, (member.tag, member.mark, key))
        self._sweep()

    def _sweep(self) -> None:
        """Drop what is outdated once it is the greater part: amortised, it costs nothing."""
        if len(self._heap) > 2 * self._n_waiting + SLACK:
            waiting = ((m.tag, m.mark, k) for k, m in self._members.items() if m.waits)
            self._heap = list(waiting)
            heapq.heapify(self._heap)
        if len(self._members) > 2 * (self._n_waiting + self._n_kept) + SLACK:
            self._members = {k: m for k, m in self._members.items() if m.waits or m.tag > self._now}
            self._n_kept = len(self._members) - self._n_waiting


@dataclass(slots=True)
class _Run:
    weight: float
    items: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)
    """Parked samples, oldest first: ordinal and cost."""
    n_seen: int = 0
    holds: int = 0


@dataclass(slots=True)
class _Tenant:
    priority: int
    weight: float
    level: Level = field(default_factory=Level)
    runs: dict[str, _Run] = field(default_factory=dict)
    held: bool = False


class Turns:
    """Parked samples of all tenants."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._levels: dict[int, Level] = {}
        self._overtaken: dict[int, int] = {}
        self._where: dict[str, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self._where)

    def park(
        self,
        item: str,
        *,
        tenant: str,
        run: str,
        cost: float,
        weight: float = 1.0,
        run_weight: float = 1.0,
        priority: int = 0,
    ) -> None:
        """A sample waits from now on. Weights and priority count as told last."""
        owner = self._tenants.setdefault(tenant, _Tenant(priority, weight))
        if owner.priority != priority:
            self._level(owner.priority).leave(tenant)
        owner.priority, owner.weight = priority, weight
        queue = owner.runs.setdefault(run, _Run(run_weight))
        queue.weight = run_weight
        queue.items[item] = (queue.n_seen, cost)
        queue.n_seen += 1
        self._where[item] = tenant, run
        self._refresh(tenant, run)

    def drop(self, item: str) -> bool:
        """A sample is given up; False if it does not wait."""
        if (where := self._where.pop(item, None)) is None:
            return False
        tenant, run = where
        del self._tenants[tenant].runs[run].items[item]
        self._refresh(tenant, run)
        return True

    def take(self) -> Turn | None:
        """The sample whose turn it is, charged to its run and tenant."""
        priority = self._class()
        if priority is None:
            return None
        level = self._levels[priority]
        tenant = level.first()
        assert tenant is not None
        owner = self._tenants[tenant]
        run = owner.level.first()
        assert run is not None
        item, (_, cost) = owner.runs[run].items.popitem(last=False)
        del self._where[item]
        level.serve(tenant, cost)
        owner.level.serve(run, cost)
        self._refresh(tenant, run)
        return Turn(item=item, tenant=tenant, run=run)

    def correct(self, tenant: str, run: str, difference: float) -> None:
        """What was taken has cost so much more (or less) than it was charged with."""
        if (owner := self._tenants.get(tenant)) is not None:
            owner.level.charge(run, difference)
            self._level(owner.priority).charge(tenant, difference)

    def hold(self, tenant: str, run: str | None = None) -> None:
        """Keep a run (as often as told), or a whole tenant, out of turn."""
        owner = self._tenants.get(tenant)
        if owner is None:
            return
        if run is None:
            owner.held = True
            self._level(owner.priority).leave(tenant)
        else:
            owner.runs.setdefault(run, _Run(1.0)).holds += 1
            self._refresh(tenant, run)

    def release(self, tenant: str, run: str | None = None) -> None:
        """Let it have its turns again."""
        owner = self._tenants.get(tenant)
        if owner is None:
            return
        if run is None:
            owner.held = False
            self._refresh_tenant(tenant)
        elif (queue := owner.runs.get(run)) is not None:
            queue.holds = max(0, queue.holds - 1)
            self._refresh(tenant, run)

    def standing(self, item: str) -> Standing | None:
        """Where a sample stands; None if it does not wait."""
        if (where := self._where.get(item)) is None:
            return None
        owner = self._tenants[where[0]]
        queue = owner.runs[where[1]]
        first = next(iter(queue.items.values()))[0]
        return Standing(
            ahead=queue.items[item][0] - first,
            parked=len(self._where),
            held=owner.held or queue.holds > 0,
        )

    def _class(self) -> int | None:
        """The priority that is served next: the highest that waits, or one that is overdue."""
        waiting = sorted((p for p, level in self._levels.items() if len(level)), reverse=True)
        if not waiting:
            return None
        due = [p for p in waiting[1:] if self._overtaken.get(p, 0) >= AGE_GRANTS]
        chosen = max(due, key=lambda p: self._overtaken[p]) if due else waiting[0]
        self._overtaken = {
            p: self._overtaken.get(p, 0) + (p < chosen) for p in waiting if p != chosen
        }
        return chosen

    def _level(self, priority: int) -> Level:
        return self._levels.setdefault(priority, Level())

    def _refresh(self, tenant: str, run: str) -> None:
        """Bring a run's and its tenant's places in line with what waits."""
        owner = self._tenants[tenant]
        queue = owner.runs[run]
        if queue.items and not queue.holds:
            owner.level.enter(run, queue.weight)
        else:
            owner.level.leave(run)
            if not queue.items and not queue.holds:
                del owner.runs[run]
        self._refresh_tenant(tenant)

    def _refresh_tenant(self, tenant: str) -> None:
        owner = self._tenants[tenant]
        level = self._level(owner.priority)
        if len(owner.level) and not owner.held:
            level.enter(tenant, owner.weight)
        else:
            level.leave(tenant)
