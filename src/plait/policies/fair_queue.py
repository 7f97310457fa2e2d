"""Fair queue: the order of ``fairness`` over a trainer's heads, kept sorted from one decision to
the next.

``observe`` and ``settle`` do what ``fairness.observe``, ``rank`` and ``settle`` do, for the runs of
which something has changed: a run's place is looked for when it begins to wait, is charged, or its
state comes to the worker, and who is overdue is known from when it is overtaken.

Invariants: the entries of a state before are never written to; order and state are functions of the
view and the state before. Left to others: which heads there are (``heads``), who goes along.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from plait.core.ids import RunId
from plait.core.view import DispatchView, WorkItem
from plait.policies import fairness
from plait.policies.ageing import Ageing, overtaken, stamped
from plait.policies.fairness import AGE_GRANTS, Entry
from plait.policies.heads import Heads
from plait.policies.kept import Kept
from plait.policies.protocol import State

Key = tuple[int, float, bool, float, int, RunId, WorkItem]
"""Negative priority, tag, whether its state is elsewhere, since when it waits, submission; whose it
is, and its head."""

FEW = 64
"""Places up to which each is looked for by itself, rather than all sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The order at one decision."""

    finishing: Sequence[WorkItem]
    """What ends an update that has begun: it goes before all others."""
    overdue: Key | None
    keys: Sequence[Key]
    """All, in fair order."""
    entries: dict[str, Entry]
    grants: dict[str, int]
    paused: frozenset[RunId]

    def ranked(self) -> Iterator[Key]:
        """All, the overdue one first, then in fair order."""
        if self.overdue is not None:
            yield self.overdue
        yield from (key for key in self.keys if key is not self.overdue)

    def queue(self) -> Iterator[WorkItem]:
        """All, in the order of service."""
        yield from self.finishing
        yield from (item for *_, item in self.ranked() if not item.finishes)

    def due(self, most: int) -> list[WorkItem]:
        """The first, and up to ``most`` behind it that would be served before it is again, even if
        it made its next step in no time: serving them with it gives nobody more than a share."""
        queue, ranked = self.queue(), self.ranked()
        first = next(ranked, None)
        if first is None:
            return []
        due = [next(queue)]
        if not 0 < due[0].rows < most:
            return due
        until = first[1] + self.entries[first[5]].get("step", 0.0)
        for item, (level, tag, *_) in zip(queue, ranked, strict=False):
            if len(due) > most or level > first[0] or (level == first[0] and tag > until):
                break
            due.append(item)
        return due

    def note(self, run_id: RunId) -> str:
        """How near a waiting run is to its guaranteed turn, in words."""
        overdue = self.overdue is not None and self.overdue[5] == run_id
        return fairness.aged(overtaken(self.grants, self.entries[run_id]), overdue=overdue)


class FairQueue:
    """The order, and what it is made from."""

    def __init__(self) -> None:
        self._heads = Heads()
        self._entries: dict[str, Entry] = {}
        self._keys: dict[RunId, Key] = {}
        self._sorted: list[Key] = []
        self._ageing = Ageing()
        self._granted: Collection[RunId] = ()
        self._virtual: dict[str, float] = {}
        self._grants: dict[str, int] = {}
        self._since_overdue = 0

    def observe(self, state: State, view: DispatchView) -> Line:
        """Charge what was served since, enter who has begun to wait, and put them in their order.
        ``state``: the one that the queue was left in, or any, if it is new."""
        touched = self._heads.follow(view)
        touched.update(self._granted)
        old: dict[str, Entry] = state.get("runs", {})
        as_left = old is self._entries
        self._entries = dict(old) if as_left else {}
        self._virtual = dict(state.get("virtual", {}))
        self._grants = dict(state.get("grants", {}))
        self._since_overdue = int(state.get("since_overdue", 0))
        if not as_left:
            touched |= self._heads.runs.keys() | self._keys.keys()
        placed = [r for r in touched if r in self._keys or r in self._heads.of]
        few = len(placed) <= FEW
        for run_id in touched:
            self._enter(run_id, old)
        for run_id in placed:
            self._place(run_id, one_by_one=few)
        if not few:
            self._sorted = sorted(self._keys.values())
        return Line(
            finishing=[key[6] for key in sorted(self._keys[r] for r in self._heads.finishing)],
            overdue=self._overdue(),
            keys=self._sorted.copy(),
            entries=self._entries,
            grants=self._grants.copy(),
            paused=frozenset(self._heads.paused),
        )

    def settle(self, line: Line, granted: Collection[RunId]) -> State:
        """Book the grants, in the order of ``line``: V rises, and who was overtaken is told so."""
        runs, virtual, since_overdue = self._entries, self._virtual, self._since_overdue
        if granted:
            runs = runs.copy()
        for run_id in granted:
            key = self._keys[run_id]
            runs[run_id] = {**runs[run_id], "waits": False, "over": 0}
            if key is line.overdue:
                # Who waits behind an overdue run was not overtaken, and V is about fair order only.
                since_overdue = 0
                continue
            since_overdue += 1
            level = str(-key[0])
            virtual[level] = max(virtual.get(level, 0.0), key[1])
            self._grants[level] = self._grants.get(level, 0) + 1
            self._ageing.granted(-key[0], runs, self._grants)
            for loser in self._before(key, line):
                if loser[5] not in granted:
                    entry = runs[loser[5]]
                    entry = runs[loser[5]] = {**entry, "over": entry["over"] + 1}
                    self._ageing.enter(loser[3:6], entry, self._grants)
        self._entries, self._granted = runs, granted
        left = {"virtual": virtual, "runs": runs, "since_overdue": since_overdue}
        return Kept({**left, "grants": self._grants}, self)

    def _enter(self, run_id: RunId, old: dict[str, Entry]) -> None:
        run = self._heads.runs.get(run_id)
        if run is None or run.stage.ended:
            self._entries.pop(run_id, None)
            return
        known, waits = old.get(run_id), run_id in self._heads.of
        # Of no account to who is known and does not wait: most that are served meanwhile.
        level = 0.0 if known and not waits else self._virtual.get(str(run.priority), 0.0)
        entry = fairness.entered(known, run, waits=waits, level=level)
        if waits:
            waited = known is not None and known["waits"]
            over = overtaken(self._grants, known) if known is not None and waited else 0
            if not waited or entry.get("level") != run.priority:
                entry = stamped(self._grants, entry, run.priority, over)
        self._entries[run_id] = entry

    def _place(self, run_id: RunId, *, one_by_one: bool) -> None:
        before = self._keys.pop(run_id, None)
        if before is not None and one_by_one:
            del self._sorted[bisect_left(self._sorted, before)]
        self._ageing.leave(run_id)
        item = self._heads.of.get(run_id)
        if item is None:
            return
        run, entry = self._heads.runs[run_id], self._entries[run_id]
        elsewhere = run_id not in self._heads.resident
        since_s = item.waiting_since_s
        key = (-run.priority, entry["tag"], elsewhere, since_s, run.order, run_id, item)
        self._keys[run_id] = key
        if one_by_one:
            insort(self._sorted, key)
        self._ageing.enter(key[3:6], entry, self._grants)

    def _overdue(self) -> Key | None:
        first = self._ageing.first() if self._since_overdue >= AGE_GRANTS else None
        return None if first is None else self._keys[first]

    def _before(self, key: Key, line: Line) -> list[Key]:
        """Who stands before it, and has not a lower priority: these are counted otherwise."""
        before = self._sorted[: bisect_left(self._sorted, key)]
        overdue = line.overdue
        if overdue is not None and overdue[0] <= key[0] and overdue not in before:
            before.append(overdue)
        return before
