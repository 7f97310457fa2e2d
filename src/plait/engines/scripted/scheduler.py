"""The rollout scheduler: which sequences are in a forward step, and with how many tokens.

A step takes, within ``max_batch_tokens``: running sequences that decode, then running ones that
prefill, then waiting ones, of the run that has fewest running first, so that one run's long queue
cannot starve another. A sequence that finds no block preempts paused ones, then the newest of those
that are behind it and not in the step yet, and failing that waits itself. A preempted sequence
keeps its tokens and is computed again.

Invariants: blocks used ≤ blocks; each accepted sequence fits alone, so whenever something is
runnable a step holds at least one token. Draws no token.
"""

from collections import Counter
from dataclasses import dataclass, field

from plait.core.errors import CapacityError
from plait.core.ids import RunId
from plait.engines.scripted.blocks import BlockLedger
from plait.engines.scripted.sequences import Group, Sequence, blocks_for


@dataclass(slots=True, kw_only=True)
class Batch:
    """One forward step: tokens to compute per sequence."""

    budget: int
    tokens: dict[Sequence, int] = field(default_factory=dict)
    n_prefill: int = 0
    n_preempted: int = 0
    short_of_blocks: set[RunId] = field(default_factory=set)


class Scheduler:
    """Running and waiting sequences over a block ledger."""

    def __init__(
        self, *, n_blocks: int, block_size: int, max_batch_tokens: int, max_seqs: int
    ) -> None:
        self.blocks = BlockLedger(n_blocks)
        self._block_size = block_size
        self._max_batch_tokens = max_batch_tokens
        self._max_seqs = max_seqs
        self._running: list[Sequence] = []
        self._waiting: list[Sequence] = []
        self._paused: set[RunId] = set()

    @property
    def n_waiting(self) -> int:
        """Sequences that wait for room, those of paused runs left out."""
        return sum(not self._is_paused(sequence) for sequence in self._waiting)

    def add(self, group: Group) -> None:
        """Queue a group; CapacityError if one of its samples could never fit."""
        if group.worst_blocks > self.blocks.size:
            raise CapacityError(
                f"a sample of {len(group.op.prompt)} + {group.max_new} tokens needs "
                f"{group.worst_blocks} cache blocks of {self._block_size}, and there are "
                f"{self.blocks.size}: lower max_tokens or enlarge the cache"
            )
        self._waiting.extend(s for s in group.sequences if s.stop_reason is None)

    def remove(self, sequence: Sequence) -> None:
        """Take an ended sequence out and free its blocks."""
        if sequence in self._running:
            self._leave(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def set_paused(self, run_id: RunId, paused: bool) -> None:
        """Paused sequences keep their blocks until somebody needs them."""
        (self._paused.add if paused else self._paused.discard)(run_id)

    def resize(self, n_blocks: int) -> int:
        """Change the ledger's size, preempting what no longer fits; how many were preempted."""
        live = [*self._running, *self._waiting]
        most = max((sequence.group.worst_blocks for sequence in live), default=1)
        if n_blocks < most:
            raise CapacityError(f"a sample in flight may need {most} blocks: keep at least those")
        self.blocks.size = n_blocks
        n_preempted = 0
        while self.blocks.free < 0 and (victim := self._victim(self._running)) is not None:
            self._preempt(victim)
            n_preempted += 1
        return n_preempted

    def has_work(self) -> bool:
        """True while a sequence of a run that is not paused is in flight."""
        return any(not self._is_paused(s) for s in (*self._running, *self._waiting))

    def blocks_by_run(self) -> dict[RunId, int]:
        """Blocks held now, by run."""
        held: Counter[RunId] = Counter()
        for group in {sequence.group for sequence in self._running}:
            held[group.op.run_id] += self.blocks.held(group)
        for sequence in self._running:
            held[sequence.group.op.run_id] += self.blocks.held(sequence)
        return dict(held)

    def schedule(self) -> Batch:
        """Fill the next forward step and book its tokens as computed."""
        batch = Batch(budget=self._max_batch_tokens)
        runnable = [s for s in self._running if not self._is_paused(s)]
        # Decodes before prefill chunks: a long prompt must not delay everybody's next token.
        for sequence in sorted(runnable, key=lambda s: s.pending > 1):
            if sequence in self._running:
                self._compute(sequence, batch)
        if not batch.n_preempted:
            self._admit(batch)
        return batch

    def _admit(self, batch: Batch) -> None:
        waiting = [s for s in self._waiting if not self._is_paused(s)]
        active = Counter(s.group.op.run_id for s in self._running if not self._is_paused(s))
        while waiting and batch.budget > 0 and active.total() < self._max_seqs:
            sequence = min(waiting, key=lambda s: active[s.group.op.run_id])
            if not active:
                self._make_room(sequence, batch)
            if self._lack(sequence, sequence.group.shared_tokens, sequence.own_known):
                batch.short_of_blocks |= {s.group.op.run_id for s in waiting}
                return
            waiting.remove(sequence)
            self._waiting.remove(sequence)
            self._running.append(sequence)
            active[sequence.group.op.run_id] += 1
            self._compute(sequence, batch)

    def _make_room(self, sequence: Sequence, batch: Batch) -> None:
        """With nobody running, paused sequences give their blocks to the first that waits."""
        while self._lack(sequence, sequence.group.shared_tokens, sequence.own_known):
            victim = self._victim(self._running)
            if victim is None:
                return
            self._give_way(victim, batch)

    def _compute(self, sequence: Sequence, batch: Batch) -> None:
        group = sequence.group
        shared_left = group.shared_tokens - group.shared_done
        n_shared = min(batch.budget, shared_left)
        own_left = sequence.own_known - sequence.computed
        n_own = min(batch.budget - n_shared, own_left) if n_shared == shared_left else 0
        if n_shared + n_own == 0:
            return
        shared, own = group.shared_done + n_shared, sequence.computed + n_own
        behind = self._running[self._running.index(sequence) + 1 :]
        while self._lack(sequence, shared, own):
            paused = [s for s in self._running if self._is_paused(s)]
            victim = self._victim([s for s in (*behind, *paused) if s not in batch.tokens])
            if victim is None:
                self._give_way(sequence, batch)
                return
            if victim in behind:
                behind.remove(victim)
            self._give_way(victim, batch)
        self.blocks.hold(group, blocks_for(shared, self._block_size))
        self.blocks.hold(sequence, blocks_for(own, self._block_size))
        if sequence.pending > 1 or not sequence.tokens:
            batch.n_prefill += n_shared + n_own
        group.shared_done, sequence.computed = shared, own
        batch.tokens[sequence] = n_shared + n_own
        batch.budget -= n_shared + n_own

    def _lack(self, sequence: Sequence, shared: int, own: int) -> int:
        """Blocks that are missing for so many shared and own tokens in the cache."""
        shared_more = blocks_for(shared, self._block_size) - self.blocks.held(sequence.group)
        own_more = blocks_for(own, self._block_size) - self.blocks.held(sequence)
        return max(0, max(0, shared_more) + max(0, own_more) - self.blocks.free)

    def _victim(self, among: list[Sequence]) -> Sequence | None:
        """The newest, paused ones first."""
        paused = [sequence for sequence in among if self._is_paused(sequence)]
        chosen = paused or among
        return chosen[-1] if chosen else None

    def _give_way(self, sequence: Sequence, batch: Batch) -> None:
        batch.n_preempted += 1
        batch.short_of_blocks.add(sequence.group.op.run_id)
        self._preempt(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        self._leave(sequence)
        sequence.computed = 0
        self._waiting.insert(0, sequence)

    def _leave(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self.blocks.release(sequence)
        group = sequence.group
        if not any(other.group is group for other in self._running):
            self.blocks.release(group)
            group.shared_done = 0

    def _is_paused(self, sequence: Sequence) -> bool:
        return sequence.group.op.run_id in self._paused
