"""Lanes: micro-batches, or parts of a step, carried out side by side, each by its own thread.

Two lanes with half the cores each beat one team of all of them: no barriers around small products,
and one lane computes while the other is in Python. The owner's thread computes nothing meanwhile
but hands out turns: a lane asks for one before each layer, the owner takes its share of the cores
as it is then (``on_layer``), and lets as many lanes go on as it has cores, the first ones first.
With one core, lanes go one after the other. What comes out is the same; what becomes of it is the
caller's.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

import torch

T = TypeVar("T")
OnLayer = Callable[[], None]
"""To be called before each layer."""

LANES = 2
"""On a CPU, however many cores it has: so neither results nor bits depend on that."""


class Lanes:
    """Up to ``n`` lanes; ``on_layer`` sets the owner's number of threads, which they share."""

    def __init__(self, n: int, on_layer: OnLayer) -> None:
        self.n = n
        self._on_layer = on_layer
        # Kept: the memory of a thread that ends stays with the allocator, which may not use it.
        # Asked for its number of threads, or torch would give a new thread the last number that was
        # set anywhere, over the one that is set in it.
        self._threads = ThreadPoolExecutor(n, "lane", initializer=torch.get_num_threads)

    def run(self, works: Sequence[Callable[[OnLayer], T]]) -> list[Callable[[], T]]:
        """Ways to have what each work makes (or raises), which is done by then; only one that is by
        itself is done in the owner's thread, when asked for."""
        if len(works) == 1:
            return [partial(works[0], self._on_layer)]
        asking: SimpleQueue[_Lane] = SimpleQueue()
        lanes = [_Lane(asking) for _ in works]
        made = [
            self._threads.submit(lane.carry_out, work)
            for lane, work in zip(lanes, works, strict=True)
        ]
        try:
            self._conduct(lanes, asking)
        finally:
            for lane in lanes:
                lane.go_on(0)
            wait(made)
        return [future.result for future in made]

    def _conduct(self, lanes: "Sequence[_Lane]", asking: "SimpleQueue[_Lane]") -> None:
        """Until all are done."""
        live, waiting = list(lanes), set()
        while live:
            lane = asking.get()
            if lane.is_done:
                live.remove(lane)
            else:
                waiting.add(lane)
            self._on_layer()
            cores = torch.get_num_threads()
            each, extra = divmod(cores, min(len(lanes), cores))
            for i, lane in enumerate(live):
                if lane in waiting and len(live) - len(waiting) < cores:
                    waiting.remove(lane)
                    lane.go_on(each + (i < extra))


class _Lane:
    """The way to tell a thread when to go on."""

    def __init__(self, asking: "SimpleQueue[_Lane]") -> None:
        self._asking = asking
        self._turns: SimpleQueue[int] = SimpleQueue()
        self.is_done = False

    def carry_out(self, work: Callable[[OnLayer], T]) -> T:
        """``work``, when it is this lane's turn."""
        try:
            self._pause()
            return work(self._pause)
        finally:
            self.is_done = True
            self._asking.put(self)

    def go_on(self, threads: int) -> None:
        """To the next layer, with so many threads; with none, to give up there."""
        self._turns.put(threads)

    def _pause(self) -> None:
        self._asking.put(self)
        threads = self._turns.get()
        if not threads:
            raise _StoppedError
        torch.set_num_threads(threads)


class _StoppedError(Exception):
    """The owner has given up, and nobody asks for what was made."""
