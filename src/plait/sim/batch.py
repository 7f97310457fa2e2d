"""Decode batch: samples that one engine decodes together, and how long until something happens.

Each forward step gives every row one token, so a row ends at a forward step that is known when it
joins: rows are kept in that order and nothing is touched between the ends that matter, the
*milestones*: a row that somebody waits for, the last row of a portion, a full cache, a change of
bucket.

*Exact*: a milestone after each forward step, timed by its rows and context. *Fluid*: stretches in
which the rows fall by no more than ``COARSE``, timed by mean rows and mean context; the cost of a
step is close to affine in both, so this is within a few parts in a hundred.

Time here is the batch's own, alone on its worker: whoever runs it slows it down. Left to others:
who may join, and which rows leave when the cache is full (``engine``).
"""

from bisect import bisect_left, insort
from operator import attrgetter
from typing import Any

from plait.core.substages import Kind
from plait.sim.costs.protocol import Costs
from plait.sim.row import Row

COARSE = 0.125
"""Part of its rows that a batch may lose within one stretch of the fluid mode: the error of a
stretch is of second order in it."""
EPS = 1e-9
"""Relative; of a float sum of step times."""

BUCKETS = (128, 1024)
"""Tokens per forward step between the kinds of rollout sub-stages (JigsawRL §4.1)."""
TAILS = (32, 16, 8, 4)
"""Rows below which a batch becomes more of a tail: where merging is asked about. A decode step of
32 rows takes little longer than one of a single row, so no sooner; then at each halving."""


_END = attrgetter("end", "order")


def kind_of(n_rows: int) -> Kind:
    """The kind of rollout sub-stage that so many tokens in a forward step are."""
    return (
        Kind.DECODE if n_rows < BUCKETS[0] else Kind.BATCH if n_rows < BUCKETS[1] else Kind.PREFILL
    )


class Batch:
    """The rows that decode now."""

    def __init__(self, costs: Costs, *, exact: bool, buckets: bool = False) -> None:
        """``buckets``: crossing into another kind of rollout, or into a tail, is a milestone."""
        self._costs, self._exact, self._buckets = costs, exact, buckets
        self.rows: list[Row] = []
        self.adapters: dict[Any, int] = {}
        """Rows by run."""
        self.step = 0.0
        self.left_s = 0.0
        """Until the next milestone, alone."""
        self.full = False
        """The next milestone is that the cache has no room for another step."""
        self._base = 0.0
        self._shared = 0.0
        self._compute_tokens = 0
        self._compute_context = 0
        self._compute_rows = 0
        self._head_s = 0.0
        self._knots: list[tuple[float, float]] = []
        self._planned_s = 0.0
        self.settled_s = 0.0
        """Done between the last two times it was brought up to date."""
        self.n_tokens = 0.0
        """Computed so far: drawn and prefilled."""

    @property
    def context(self) -> float:
        """Tokens that its rows look at."""
        return self._base + len(self.rows) * self.step

    @property
    def held(self) -> float:
        """Tokens of cache that its rows hold."""
        return self._base - self._shared + len(self.rows) * self.step

    @property
    def done_s(self) -> float:
        """Since it was last brought up to date."""
        return self._planned_s - self.left_s

    @property
    def between_steps(self) -> bool:
        """In exact mode nobody joins in the middle of a forward step."""
        return not self._exact or not self.rows or self.left_s == self._planned_s

    def join(self, rows: list[Row]) -> None:
        """More rows; ``settle`` before and ``plan`` after."""
        for row in rows:
            row.end = self.step + row.left
            row.base = row.context - self.step
            self._base += row.base
            self._shared += row.shared
            run = row.portion.run
            self.adapters[run] = self.adapters.get(run, 0) + 1
            if row.compute:
                self._compute_tokens += row.compute
                self._compute_context += row.context - row.compute
                self._compute_rows += 1
                row.compute = 0
        if len(rows) == 1:
            insort(self.rows, rows[0], key=_END)
        else:
            self.rows += rows
            self.rows.sort(key=_END)

    def settle(self) -> list[Row]:
        """Bring the rows up to date; those that have ended leave and are returned."""
        self.settled_s = done_s = self._planned_s - self.left_s
        if not self._knots:
            return []
        if self.left_s <= EPS * self._planned_s:
            step, head_s = self._knots[-1][1], 0.0
        else:
            step, head_s = self._at(done_s)
        advanced = step - self.step
        n = len(self.rows)
        if self._compute_tokens:
            # What has been computed of the new rows' tokens: all, or in proportion.
            rest = head_s / self._head_s if self._head_s > 0 else 0.0
            self.n_tokens += self._compute_tokens * (1.0 - rest)
            self._scale_compute(rest)
        self.step = step
        ended = 0
        reach = step + 1e-6
        while ended < n and self.rows[ended].end <= reach:
            ended += 1
        out = self.rows[:ended]
        over = 0.0
        for row in out:
            over += step - row.end
            self._leave(row, row.left)
        del self.rows[:ended]
        self._empty()
        self.n_tokens += max(0.0, advanced * n - over)
        self._knots, self._planned_s, self.left_s = [], 0.0, 0.0
        return out

    def remove(self, row: Row) -> None:
        """Take out a row that has not ended, up to date; ``settle`` before and ``plan`` after."""
        i = bisect_left(self.rows, _END(row), key=_END)
        assert self.rows[i] is row
        del self.rows[i]
        self._leave(row, max(0, row.left - max(1, round(row.end - self.step))))
        self._empty()

    def plan(self, limit: float, *, every: bool) -> None:
        """Find the next milestone. ``limit``: tokens of cache; ``every``: each end is one."""
        self._knots = [(0.0, self.step)]
        self.full = False
        self._planned_s = self.left_s = 0.0
        if not self.rows:
            return
        self._head_s = 0.0
        if self._compute_tokens:
            self._head_s = self._costs.prefill_s(
                self._compute_tokens,
                self._compute_context,
                len(self.adapters),
                n_samples=max(1, self._compute_rows),
            )
            self._knots.append((self._head_s, self.step))
        if self._exact:
            self._plan_step(limit)
        else:
            self._plan_stretch(limit, every)
        self._planned_s = self.left_s = self._knots[-1][0]

    def outlook(self) -> list[tuple[int, float, int]]:
        """What is to come if nobody joins: rows at the beginning of a stretch, its seconds alone,
        mean context; stretches end where the kind of rollout changes. Up to date only."""
        out: list[tuple[int, float, int]] = []
        bounds = [n for n in sorted(BUCKETS, reverse=True) if n <= len(self.rows)]
        rows, n, a = self.rows, len(self.rows), self.step
        base = self._base
        for bound in [*bounds, 1]:
            i = len(rows) - n
            j = len(rows) - bound + 1
            if j <= i:
                continue
            b = rows[j - 1].end
            gone = rows[i:j]
            mean_n = (
                n if b <= a else (sum(r.end - a for r in gone) + (n - j + i) * (b - a)) / (b - a)
            )
            rest = base - sum(r.base for r in gone)
            context = (base + n * a + rest + (n - j + i) * b) / 2
            step_s = self._costs.decode_s(max(1, round(mean_n)), round(context), len(self.adapters))
            out.append((n, step_s * (b - a), round(context / max(1.0, mean_n))))
            n, a, base = n - (j - i), b, rest
        return out

    def _plan_step(self, limit: float) -> None:
        n = len(self.rows)
        step_s = self._costs.decode_s(n, round(self.context), len(self.adapters))
        self.full = self.held + 2 * n > limit
        self._knots.append((self._head_s + step_s, self.step + 1.0))

    def _plan_stretch(self, limit: float, every: bool) -> None:
        rows, n, a = self.rows, len(self.rows), self.step
        work_s, n_adapters = self._head_s, len(self.adapters)
        base, held = self._base, self._base - self._shared
        left: dict[Any, int] = {}
        i = 0
        while i < n:
            alive = n - i
            goal = max(1, int(alive * COARSE))
            if held + alive * rows[min(n, i + goal) - 1].end > limit:
                goal = 1
            j, gone_s, gone_base, gone_shared, stop = i, 0.0, 0.0, 0.0, False
            while j < n and not stop and (j - i < goal or rows[j].end == rows[j - 1].end):
                row = rows[j]
                j += 1
                gone_s += row.end - a
                gone_base += row.base
                gone_shared += row.shared
                portion = row.portion
                rest = left.get(portion)
                rest = (portion.n_rows if rest is None else rest) - 1
                left[portion] = rest
                stop = every or rest == 0 or (row.more and not portion.blocked)
                stop = stop or (self._buckets and n - j + 1 in (*BUCKETS, *TAILS))
            b = rows[j - 1].end
            room = (limit - held) / alive - 1.0
            if goal == 1 and b > room + 1e-6:
                # The cache is full before anyone ends.
                b = max(a, min(b, room))
                self.full, stop = True, True
                j, gone_s, gone_base, gone_shared = i, 0.0, 0.0, 0.0
            if b > a:
                rest_n = n - j
                mean_n = (gone_s + rest_n * (b - a)) / (b - a)
                context = base + alive * a
                context += base - gone_base + rest_n * b
                step_s = self._costs.decode_s(max(1, round(mean_n)), round(context / 2), n_adapters)
                work_s += step_s * (b - a)
            self._knots.append((work_s, b))
            if stop:
                break
            base -= gone_base
            held -= gone_base - gone_shared
            i, a = j, b

    def _at(self, done_s: float) -> tuple[float, float]:
        """Forward step after ``done_s`` of the plan, and what is left of the computing before."""
        knots = self._knots
        if done_s < self._head_s:
            return self.step, self._head_s - done_s
        k = bisect_left(knots, (done_s,))
        (s0, g0), (s1, g1) = knots[k - 1] if k else knots[0], knots[min(k, len(knots) - 1)]
        if s1 <= s0:
            return g1, 0.0
        return g0 + (g1 - g0) * min(1.0, (done_s - s0) / (s1 - s0)), 0.0

    def _scale_compute(self, share: float) -> None:
        self._compute_tokens = round(self._compute_tokens * share)
        self._compute_context = round(self._compute_context * share)
        self._compute_rows = round(self._compute_rows * share)

    def _leave(self, row: Row, drawn: int) -> None:
        self._base -= row.base
        self._shared -= row.shared
        row.context += drawn
        row.left -= drawn
        run = row.portion.run
        self.adapters[run] -= 1
        if not self.adapters[run]:
            del self.adapters[run]

    def _empty(self) -> None:
        if not self.rows:
            self._base = self._shared = 0.0
            self._compute_tokens = self._compute_context = self._compute_rows = 0
