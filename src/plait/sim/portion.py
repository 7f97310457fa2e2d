"""Portion: the samples of one rollout that are at one engine, and their tools.

A sample draws its turns one after another. Between two of them it waits for the job's tool: each by
itself, through the job's slots if it has few, or *blocked*, when each sample that has not ended
asks and they are all called at once.

Left to others: decoding (``engine``), where samples are (``fleet``).
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from plait.core.plan import Keep
from plait.sim.engine import Engine
from plait.sim.heap import Heap
from plait.sim.lengths import StepDraw
from plait.sim.row import Row
from plait.sim.spec import JobSpec

RANK = {Keep.DROP: 0, Keep.LEAVE: 1, Keep.KEEP: 2}


class ToolSlots:
    """Calls of one job's tool at once; ``n=0``: no limit."""

    def __init__(self, n: int, heap: Heap) -> None:
        self._free, self._heap = n if n > 0 else -1, heap
        self._queue: deque[tuple[float, Callable[[Any], None], Any]] = deque()

    def call(self, wait_s: float, done: Callable[[Any], None], argument: Any) -> None:
        """Call ``done`` after the wait for a slot and ``wait_s``."""
        if self._free == 0:
            self._queue.append((wait_s, done, argument))
            return
        self._free -= self._free > 0
        self._heap.after(wait_s, self._ended, (done, argument))

    def _ended(self, call: tuple[Callable[[Any], None], Any]) -> None:
        done, argument = call
        if self._queue:
            wait_s, next_done, next_argument = self._queue.popleft()
            self._heap.after(wait_s, self._ended, (next_done, next_argument))
        elif self._free >= 0:
            self._free += 1
        done(argument)


class Portion:
    """One rollout's samples at one engine."""

    def __init__(
        self,
        *,
        spec: JobSpec,
        run: str,
        step: int,
        draw: StepDraw,
        engine: Engine,
        heap: Heap,
        tools: ToolSlots,
        ended: Callable[["Portion"], None],
        residency: Callable[[Row], Keep] | None = None,
    ) -> None:
        self.spec, self.run, self.step, self.draw = spec, run, step, draw
        self.blocked = spec.tool is not None and spec.tool.blocked
        """Nobody waits for one sample's turn, but for the last one's."""
        self.engine, self._heap, self._tools = engine, heap, tools
        self._ended, self._residency = ended, residency
        self.n_rows = 0
        """In the engine's batch."""
        self.left = 0
        """Samples that have not ended."""
        self.asking: list[Row] = []
        self.out = 0
        """Samples with a tool."""
        self.dropped = False
        self.throttled = False
        self.device_s = 0.0
        self.held_s = 0.0
        """Tokens of cache times seconds."""
        self.n_tokens = 0

    def start(self, groups: list[int]) -> None:
        """Submit the samples of these groups."""
        rows: list[Row] = []
        size = self.draw.group_size
        for group in groups:
            prompt = self.draw.prompts[group]
            for i in range(size):
                sample = group * size + i
                row = Row(self, sample, prompt, prompt - -(-prompt // size), 0)
                row.left = self.draw.responses[sample][0]
                row.more = len(self.draw.responses[sample]) > 1
                # A group's prompt is computed once; the others only look at it.
                row.compute = prompt if i == 0 else 0
                rows.append(row)
        self.left = len(rows)
        self.engine.submit(rows)

    def turn_ended(self, row: Row) -> None:
        """The engine has drawn all of a turn's tokens."""
        if self.dropped:
            return
        self.n_tokens += self.draw.responses[row.sample][row.turn]
        if not row.more:
            waits_s = self.draw.waits_s[row.sample]
            if row.turn < len(waits_s):  # recorded: the environment's last reply
                self._heap.after(waits_s[row.turn], self._over)
            else:
                self._over()
            return
        wait_s = self.draw.waits_s[row.sample][row.turn]
        if self.blocked:
            self.asking.append(row)
            self.engine.away(row)
            self._call_all()
            return
        self._wait(row, wait_s)

    def _over(self, _: object = None) -> None:
        """A sample has ended."""
        if self.dropped:
            return
        self.left -= 1
        if self.left == 0:
            self._ended(self)
        elif self.blocked:
            self._call_all()

    def charge(self, *, device_s: float, held_s: float) -> None:
        """What a row has taken."""
        self.device_s += device_s
        self.held_s += held_s

    def _wait(self, row: Row, wait_s: float) -> None:
        if self._residency is not None:
            row.keep = RANK[self._residency(row)]
        self.out += 1
        self.engine.away(row)
        self._tools.call(wait_s, self._back, row)

    def _call_all(self) -> None:
        """All that are left have asked: one call, as long as its longest."""
        if not self.asking or len(self.asking) < self.left:
            return
        asked, self.asking = self.asking, []
        self.out += len(asked)
        wait_s = max(self.draw.waits_s[row.sample][row.turn] for row in asked)
        self._tools.call(wait_s, self._all_back, asked)

    def _all_back(self, rows: list[Row]) -> None:
        if not self.dropped:
            self.engine.back([(row, self._next_turn(row)) for row in rows])

    def _back(self, row: Row) -> None:
        self._all_back([row])

    def _next_turn(self, row: Row) -> int:
        """Begin it; returns the tokens that the tool returned."""
        self.out -= 1
        result = self.draw.results[row.sample][row.turn]
        self.n_tokens += result
        row.turn += 1
        row.left = self.draw.responses[row.sample][row.turn]
        row.more = row.turn + 1 < len(self.draw.responses[row.sample])
        return result
