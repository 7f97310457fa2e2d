"""Event heap: a virtual clock and what happens on it, in order of time, then of entry.

Invariants: time never goes back; two events of one time run in the order in which they were
entered; a cancelled event never runs; the same entries give the same run.

Left to others: what an event does. Nothing here draws or waits.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

Event = list[Any]
"""``[time_s, order, call, argument]``; a cancelled one has no call."""

SWEEP_AT = 1024
"""Cancelled events that may lie in the heap before it is cleared of them, if they are more than
half: below this a sweep costs more than it saves."""


class Heap:
    """A virtual clock, seconds from 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self.n_events = 0
        self._heap: list[Event] = []
        self._entered = 0
        self._cancelled = 0

    def at(self, time_s: float, call: Callable[[Any], None], argument: Any = None) -> Event:
        """Call ``call(argument)`` at ``time_s``, or now if that is past."""
        self._entered += 1
        event = [time_s if time_s > self.now else self.now, self._entered, call, argument]
        heappush(self._heap, event)
        return event

    def after(self, delay_s: float, call: Callable[[Any], None], argument: Any = None) -> Event:
        """Call ``call(argument)`` in ``delay_s``."""
        return self.at(self.now + delay_s, call, argument)

    def cancel(self, event: Event) -> None:
        """Drop an event; one that has run or was dropped already is left alone."""
        if event[2] is None:
            return
        event[2] = None
        self._cancelled += 1
        if self._cancelled > SWEEP_AT and 2 * self._cancelled > len(self._heap):
            # In place: ``run`` holds on to the list.
            self._heap[:] = [e for e in self._heap if e[2] is not None]
            heapify(self._heap)
            self._cancelled = 0

    def step(self) -> bool:
        """Run all events of the next time, those that are entered for it meanwhile included; False
        if there are none left."""
        heap = self._heap
        while heap and heap[0][2] is None:
            heappop(heap)
            self._cancelled -= 1
        if not heap:
            return False
        self.now = now = heap[0][0]
        while heap and heap[0][0] == now:
            _, _, call, argument = event = heappop(heap)
            if call is None:
                self._cancelled -= 1
                continue
            event[2] = None
            self.n_events += 1
            call(argument)
        return True

    def run(self) -> None:
        """Run until nothing is left."""
        while self.step():
            pass


def churn(n_events: int, n_chains: int = 64) -> int:
    """Run ``n_events`` events of ``n_chains`` chains, a cancellation for every fourth; returns how
    many ran. For timing the heap by itself."""
    heap = Heap()
    left = n_events

    def tick(delay_s: float) -> None:
        nonlocal left
        if left <= 0:
            return
        left -= 1
        if left % 4 == 0:
            heap.cancel(heap.after(delay_s, tick, delay_s))
        heap.after(delay_s, tick, delay_s)

    for chain in range(n_chains):
        heap.at(0.0, tick, 1.0 + chain / n_chains)
    heap.run()
    return heap.n_events
