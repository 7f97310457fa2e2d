"""Graphs: decode steps that are recorded once and replayed (which ones: ``replays``).

Invariant: a graph knows addresses, so all are forgotten when the cache's or the stack's memory is
another. If recording fails the engine goes on eagerly for good. On a CPU frames run without being
recorded, for tests. **The recording itself is untested on a GPU.**
"""

import warnings
from collections import OrderedDict
from collections.abc import Callable

import torch

from plait.adapters.peft import Adapter
from plait.engines.torch.batch import Batch
from plait.engines.torch.blocks import Policy
from plait.engines.torch.frame import Frame, Parts
from plait.engines.torch.replays import MAX_GRAPHS, Key, choose
from plait.engines.torch.schedule import Plan

Compute = Callable[[], torch.Tensor]
Record = Callable[[Compute], Compute]
"""What it is given, recorded: the same addresses in and out at every call."""


class Graphs:
    """The graphs of one engine and the adapters that they read."""

    def __init__(self, parts: Parts, record: Record) -> None:
        self._parts, self._record = parts, record
        self._kept: OrderedDict[Key, tuple[Frame, Compute]] = OrderedDict()
        self._broken = False

    def put(self, policy: Policy, adapter: Adapter) -> None:
        """Take in an adapter (or leave it out, if it does not do)."""
        if self._parts.stack.put(policy, adapter):
            self.forget()

    def drop(self, policy: Policy) -> None:
        self._parts.stack.drop(policy)

    def forget(self) -> None:
        """The cache's or the stack's memory is another."""
        self._kept.clear()

    def key_of(self, plan: Plan) -> Key | None:
        """The key by which ``plan`` can be replayed, or ``None``."""
        if self._broken:
            return None
        stack = self._parts.stack
        policies = {s.policy for s in plan.decodes}
        numbers = [stack.number(policy) for policy in policies]
        columns = stack.n_columns if any(numbers) else 0
        return choose(
            n_decodes=len(plan.decodes),
            n_chunks=len(plan.chunks),
            n_blocks=max((len(s.blocks) for s in plan.decodes), default=0),
            columns=None if None in numbers else columns,
            block_bytes=self._parts.kv.block_bytes,
        )

    def logits(self, key: Key, batch: Batch) -> torch.Tensor | None:
        """``logits_BV`` of a step's rows, valid until the next; ``None`` if it could not be
        recorded, with nothing changed."""
        numbers = [self._parts.stack.number(s.policy) or 0 for s in batch.draws]
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            found[0].fill(batch, numbers)
            return found[1]()[: batch.n_decode]
        frame = Frame(key, self._parts)
        frame.fill(batch, numbers)
        try:
            replay = self._record(frame.compute)
        except RuntimeError as error:
            warnings.warn(f"decode steps are not recorded: {error}", stacklevel=2)
            self._broken = True
            self.forget()
            return None
        self._kept[key] = frame, replay
        if len(self._kept) > MAX_GRAPHS:
            self._kept.popitem(last=False)
        return replay()[: batch.n_decode]


def make_record(device: torch.device) -> Record:
    """CUDA graphs that share one pool; elsewhere nothing is recorded."""
    if device.type != "cuda":
        return lambda compute: compute
    pool = torch.cuda.graph_pool_handle()

    def record(compute: Compute) -> Compute:
        # What a library sets up at first use must not fall into the recording.
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            compute()
        torch.cuda.current_stream(device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            out = compute()

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay

    return record
