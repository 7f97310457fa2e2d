"""Solo: a batch that nobody will join, from its first row to its last in one computation.

What an engine does with such a batch is known when it begins, its queue and its full caches
included, so the fluid mode need not stop at each. The rules are the engine's: rows join in order
while the cache has room for all of them for some steps, and the latest goes back when it has not.

Left to others: being interrupted; ``at`` says how far each row is then.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from math import log2

from plait.sim.costs.protocol import Costs
from plait.sim.row import Row

PARTS = 64
"""Into so many parts the cache is divided where times of forward steps are remembered: half a part
is off by less than a hundredth of the time to read a full cache."""
SIZES = 2
"""Sizes of prefill per power of two whose rate is remembered: attention, the part that is not
proportional to tokens, changes little between them."""


class Remembered:
    """Times of one cost model, asked for once."""

    def __init__(self, costs: Costs, pool_tokens: int) -> None:
        self._costs, self._part = costs, max(1, pool_tokens // PARTS)
        self._steps: dict[int, float] = {}
        self._rates: dict[int, float] = {}

    def step_s(self, n: int, context: float) -> float:
        """One forward step."""
        part = int(context / self._part)
        key = part << 20 | n
        known = self._steps.get(key)
        if known is None:
            middle = round((part + 0.5) * self._part)
            known = self._steps[key] = self._costs.decode_s(n, middle, 1)
        return known

    def prefill_s(self, tokens: int, context: int, n: int) -> float:
        """Of ``n`` rows."""
        size = round(SIZES * log2(tokens / n)) << 20 | n
        rate = self._rates.get(size)
        if rate is None:
            seconds = self._costs.prefill_s(tokens, context, 1, n_samples=n)
            rate = self._rates[size] = seconds / tokens
        return tokens * rate


class Solo:
    """One batch's course, alone on its worker."""

    def __init__(
        self,
        rows: Sequence[Row],
        times: Remembered,
        *,
        pool_tokens: int,
        headroom: int,
        most_rows: int = 0,
    ) -> None:
        """``headroom``: steps for which a row that joins must find room beside the others."""
        self.rows = list(rows)
        self.total_s = 0.0
        self.n_tokens = 0
        """Computed: drawn, prefilled, and prefilled again."""
        self.n_preempted = 0
        self.held_s = 0.0
        """Tokens of cache times seconds."""
        n_rows = len(self.rows)
        self._begun_s = [0.0] * n_rows
        self._ended_s = [0.0] * n_rows
        self._run(times, pool_tokens, headroom, most_rows or n_rows)

    def at(self, done_s: float) -> list[Row]:
        """The rows that have not ended after so much of its time, brought up to date."""
        out = []
        for row, begun_s, ended_s in zip(self.rows, self._begun_s, self._ended_s, strict=True):
            if ended_s <= done_s:
                continue
            if begun_s < done_s and ended_s > begun_s:
                drawn = int(row.left * (done_s - begun_s) / (ended_s - begun_s))
                row.context += drawn
                row.left = max(1, row.left - drawn)
                row.compute = row.context
            out.append(row)
        return out

    def _run(self, times: Remembered, pool: int, headroom: int, most: int) -> None:
        rows, decode_s = self.rows, times.step_s
        lefts = [row.left for row in rows]
        contexts = [row.context for row in rows]
        shared = [row.shared for row in rows]
        computes = [row.compute for row in rows]
        begun = [False] * len(rows)
        waiting = deque(range(len(rows)))
        ends: list[tuple[int, int, int]] = []  # step at which it ends, row, visit
        visit = [0] * len(rows)
        joined: list[tuple[int, int]] = []  # row, visit: the latest last
        joined_at = [0] * len(rows)
        step, now, n = 0.0, 0.0, 0
        context, held = 0.0, 0.0  # now, of all rows in the batch
        tokens, held_s = 0.0, 0.0
        blocked = False
        while n or waiting:
            compute = compute_context = joining = 0
            while waiting and n < most and not blocked:
                i = waiting[0]
                own = contexts[i] - shared[i]
                if n and held + own + (n + 1) * headroom > pool:
                    break
                waiting.popleft()
                if not begun[i]:
                    begun[i], self._begun_s[i] = True, now
                joined.append((i, visit[i]))
                joined_at[i] = round(step)
                heappush(ends, (joined_at[i] + lefts[i], i, visit[i]))
                n += 1
                context += contexts[i]
                held += own
                if computes[i]:
                    compute += computes[i]
                    compute_context += contexts[i] - computes[i]
                    joining += 1
                    computes[i] = 0
            blocked = False
            if compute:
                took_s = times.prefill_s(compute, compute_context, joining)
                now += took_s
                held_s += held * took_s
                tokens += compute
            while ends[0][2] != visit[ends[0][1]]:
                heappop(ends)
            steps = ends[0][0] - step
            room = (pool - held) / n
            full = n > 1 and room < steps
            if full:
                steps = max(0.0, room)
            took_s = steps * decode_s(n, context + 0.5 * n * steps)
            now += took_s
            held_s += (held + 0.5 * n * steps) * took_s
            step += steps
            grown = n * steps
            context += grown
            held += grown
            tokens += grown
            if full:
                # As the engine: the latest leave until there is room to go on for a while.
                while n > 1 and held + n * headroom > pool:
                    i, when = joined.pop()
                    if visit[i] != when or lefts[i] <= 0:
                        continue
                    drawn = min(lefts[i] - 1, round(step) - joined_at[i])
                    lefts[i] -= drawn
                    contexts[i] += drawn
                    computes[i] = contexts[i]
                    visit[i] += 1
                    n -= 1
                    context -= contexts[i]
                    held -= contexts[i] - shared[i]
                    waiting.appendleft(i)
                    self.n_preempted += 1
                blocked = True
                continue
            _, i, _ = heappop(ends)
            contexts[i] += lefts[i]
            lefts[i] = 0
            visit[i] += 1
            self._ended_s[i] = now
            n -= 1
            context -= contexts[i]
            held -= contexts[i] - shared[i]
            if not n:
                context = held = 0.0
        self.total_s, self.n_tokens, self.held_s = now, round(tokens), held_s
