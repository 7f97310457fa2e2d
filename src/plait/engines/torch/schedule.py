"""Schedule: which samples take part in the next forward step, and who holds blocks. No tensors.

Rules, first come first served by arrival:
- samples that run decode in every step; prefill fills what is left of the step's token budget;
- a prompt that several samples share is computed by one of them, the others fork from it, but for
  those that are to score it: these compute it themselves, whatever a cache knows;
- a sample is admitted when its tokens so far fit and something is left for the others' growth;
- when a running sample needs a block and there is none, samples of paused runs give theirs back
  first, then the newest. They keep their tokens and are computed again later;
- the oldest runnable sample always gets its blocks, so the whole makes progress.

What a step computes is ``rollout``'s.
"""

from bisect import insort
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from plait.core.errors import CapacityError
from plait.core.ids import RunId
from plait.engines.torch.blocks import Blocks
from plait.engines.torch.sequence import Sequence

GROWTH_TOKENS = 8
"""Tokens' worth of blocks kept free per running sample when another is admitted: that postpones the
first preemption by about so many steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """``n`` prompt (or recomputed) tokens of a sequence from position ``start`` on."""

    sequence: Sequence
    start: int
    n: int
    draws: bool
    """The chunk ends at the last token, so that the next one can be drawn."""


@dataclass(slots=True, kw_only=True)
class Plan:
    """One forward step. Copies come before ``fresh`` blocks are cleared."""

    decodes: list[Sequence] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    forks: dict[Sequence, list[Sequence]] = field(default_factory=dict)
    copies: list[tuple[int, int]] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)
    grown: list[Sequence] = field(default_factory=list)
    n_preempted: int = 0
    short_of_blocks: set[RunId] = field(default_factory=set)


class Scheduler:
    """Queues of sequences over a ledger of blocks."""

    def __init__(self, blocks: Blocks, *, max_seqs: int, max_batch_tokens: int) -> None:
        self.blocks = blocks
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._paused: set[RunId] = set()
        self._max_seqs = max_seqs
        self._max_batch_tokens = max_batch_tokens

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_arrival)

    def adopt(self, tables: Mapping[Sequence, Seq[int]], n_blocks: int) -> list[int]:
        """Start samples of one run that lack only the last token's keys and values.

        Their blocks are given as places among ``n_blocks`` new ones, which are returned; if there
        is no room for them the samples wait, to be computed again, and none are returned.
        """
        n_active = len(self.running) + len(tables)
        if n_blocks + self._growth(n_active) > self.blocks.n_available:
            for s in tables:
                self.add(s)
            return []
        blocks = self.blocks.take(next(iter(tables)).policy[0], n_blocks)
        held: set[int] = set()
        for s, places in tables.items():
            s.blocks = [blocks[place] for place in places]
            s.n_cached = len(s.tokens) - 1
            self.blocks.share(held.intersection(s.blocks))
            held.update(s.blocks)
        self._start(list(tables))
        return blocks

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence that is over, or given up, out of the queues."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._drop_blocks(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def set_paused(self, run_id: RunId, paused: bool) -> None:
        if paused:
            self._paused.add(run_id)
        else:
            self._paused.discard(run_id)

    def has_work(self) -> bool:
        return any(not self._is_paused(s) for s in self.running) or any(
            not self._is_paused(s) for s in self.waiting
        )

    def plan(self) -> Plan:
        """Decide the next step. Blocks are taken here, progress is noted by ``advance``."""
        plan = Plan()
        budget = self._max_batch_tokens
        active = [s for s in self.running if not self._is_paused(s)][: self._max_seqs]
        for s in active:
            if s.n_todo == 1 and s.blocks and self._make_room(s, plan):
                plan.decodes.append(s)
                budget -= 1
        active = [s for s in active if s.blocks]
        for s in active:
            if s.n_todo > 1 and budget > 0:
                budget -= self._add_chunk(s, plan, budget)
        if len(active) < self._max_seqs and budget > 0 and self.waiting:
            self._admit(active, plan, budget)
        return plan

    def advance(self, plan: Plan) -> None:
        """Note what the step has computed: cached tokens, findable blocks, forks."""
        for s in plan.decodes:
            s.n_cached += 1
            if s.n_cached % self.blocks.block_size == 0:
                self._publish(s)
        for chunk in plan.chunks:
            s = chunk.sequence
            s.n_cached += chunk.n
            self._publish(s)
            for fork in plan.forks.get(s, ()):
                fork.n_cached, fork.n_published, fork.chain = s.n_cached, s.n_published, s.chain

    def preempt_all(self) -> int:
        """Give back every block; all samples are computed again from their tokens."""
        n = len(self.running)
        for s in list(self.running):
            self._preempt(s)
        return n

    def resize(self, n_blocks: int) -> tuple[dict[int, int], int]:
        """Change the number of blocks; returns block moves old → new, and samples preempted."""
        for s in (*self.running, *self.waiting):
            need = self.blocks.blocks_for(s.n_most)
            if need > n_blocks:
                raise CapacityError(
                    f"{n_blocks} KV blocks are too few: sample {s.op_id} may need {need}"
                )
        n_preempted = 0
        while self.blocks.n_held > n_blocks:
            self._preempt(self._victim())
            n_preempted += 1
        moves = self.blocks.resize(n_blocks)
        if moves:
            for s in self.running:
                s.blocks = [moves.get(b, b) for b in s.blocks]
        return moves, n_preempted

    def _admit(self, active: list[Sequence], plan: Plan, budget: int) -> None:
        room = self._max_seqs - len(active)
        n_active = len(active)
        prefilling = {s.group for s in active if s.n_drawn == 0}
        admitted: list[Sequence] = []
        queue = list(self.waiting)
        for place, s in enumerate(queue):
            if room == 0 or budget <= 0:
                break
            if self._is_paused(s) or (s.n_drawn == 0 and s.group in prefilling):
                continue
            if not self._give_blocks(s, n_active, plan):
                plan.short_of_blocks |= {s.policy[0] for s in queue[place:]} - self._paused
                break
            admitted.append(s)
            n_active, room = n_active + 1, room - 1
            if s.n_drawn == 0:
                prefilling.add(s.group)
            if s.n_todo == 1:
                plan.decodes.append(s)
                budget -= 1
            else:
                budget -= self._add_chunk(s, plan, budget)
        self._start(admitted)
        self._fork(plan, room, n_active)

    def _give_blocks(self, s: Sequence, n_active: int, plan: Plan) -> bool:
        """Hold blocks for all tokens so far, reusing what is known of them."""
        found, chain = self.blocks.find(s.policy, s.findable)
        n_new = self.blocks.blocks_for(len(s.tokens)) - len(found)
        need = n_new + self._growth(n_active)
        while need + sum(map(self.blocks.is_idle, found)) > self.blocks.n_available:
            paused = self._newest_paused()
            if paused is None:
                return False
            self._give_way(paused, plan)
        self.blocks.share(found)
        s.blocks = found + self.blocks.take(s.policy[0], n_new)
        s.n_cached = len(found) * self.blocks.block_size
        s.n_published, s.chain = len(found), chain
        plan.fresh.append(s.blocks[-1])
        plan.grown.append(s)
        return True

    def _fork(self, plan: Plan, room: int, n_active: int) -> None:
        leaders = {
            c.sequence.group: c.sequence for c in plan.chunks if c.draws and c.sequence.n_drawn == 0
        }
        if not leaders or room == 0:
            return
        forked: list[Sequence] = []
        for s in self.waiting:
            leader = leaders.get(s.group)
            if leader is None or s.n_drawn or s.scores or self._is_paused(s):
                continue
            # Each fork, and each leader that has some, takes a block of its own in the next step.
            n_next = len(forked) + 1 + len(plan.forks)
            if len(forked) == room:
                break
            if n_next + self._growth(n_active) > self.blocks.n_available:
                plan.short_of_blocks.add(s.policy[0])
                break
            self.blocks.share(leader.blocks)
            s.blocks = list(leader.blocks)
            plan.forks.setdefault(leader, []).append(s)
            forked.append(s)
            n_active += 1
        self._start(forked)

    def _growth(self, n_active: int) -> int:
        """Blocks to be kept free for samples that run."""
        return n_active * GROWTH_TOKENS // self.blocks.block_size

    def _start(self, sequences: list[Sequence]) -> None:
        if sequences:
            started = set(sequences)
            self.waiting = [s for s in self.waiting if s not in started]
            self.running = sorted((*self.running, *sequences), key=_arrival)

    def _add_chunk(self, s: Sequence, plan: Plan, budget: int) -> int:
        n = min(s.n_todo, budget)
        plan.chunks.append(Chunk(sequence=s, start=s.n_cached, n=n, draws=n == s.n_todo))
        return n

    def _give_way(self, s: Sequence, plan: Plan) -> None:
        plan.n_preempted += 1
        plan.short_of_blocks.add(s.policy[0])
        self._preempt(s)

    def _make_room(self, s: Sequence, plan: Plan) -> bool:
        """A place of its own for the next token of ``s``; False if ``s`` had to give way itself."""
        i = s.n_cached // self.blocks.block_size
        copy = i < len(s.blocks)
        if copy and not self.blocks.is_shared(s.blocks[i]):
            return True
        while self.blocks.n_available == 0:
            victim = self._victim()
            self._give_way(victim, plan)
            if victim is s:
                return False
            if copy and not self.blocks.is_shared(s.blocks[i]):
                return True
        (block,) = self.blocks.take(s.policy[0], 1)
        if copy:
            plan.copies.append((s.blocks[i], block))
            self.blocks.release([s.blocks[i]])
            s.blocks[i] = block
        else:
            plan.fresh.append(block)
            s.blocks.append(block)
        plan.grown.append(s)
        return True

    def _victim(self) -> Sequence:
        return self._newest_paused() or self.running[-1]

    def _newest_paused(self) -> Sequence | None:
        return next((s for s in reversed(self.running) if self._is_paused(s)), None)

    def _preempt(self, s: Sequence) -> None:
        self.running.remove(s)
        self._drop_blocks(s)
        self.add(s)

    def _drop_blocks(self, s: Sequence) -> None:
        self.blocks.release(s.blocks)
        s.blocks, s.n_cached, s.n_published, s.chain = [], 0, 0, 0

    def _publish(self, s: Sequence) -> None:
        size = self.blocks.block_size
        for i in range(s.n_published, s.n_cached // size):
            after = s.chain or self.blocks.root(s.policy)
            tokens = s.tokens[i * size : (i + 1) * size]
            s.chain = self.blocks.publish(s.policy, after, tokens, s.blocks[i])
            s.n_published = i + 1

    def _is_paused(self, s: Sequence) -> bool:
        return s.policy[0] in self._paused


def _arrival(s: Sequence) -> int:
    return s.arrival
