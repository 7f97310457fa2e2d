"""Blocks: who holds which KV block, and which full blocks can be used again. No tensors here.

Invariants:
- a block is free, held (``refs > 0``), or idle (unheld but its content can be found by its prefix);
- only full blocks are findable, by the chain of (policy, tokens) that leads to them. It compares
  tokens, not digests, and starts at the policy, so a version's blocks can never serve another;
- idle blocks are given up least recently used first, the end of a prefix before its beginning,
  unless a prefix was marked to go before or after the others; what is found only through a block
  goes with it;
- a block is held by samples of one run only, so counts by run add up to the blocks held.

What is in the blocks, and when a sample may have one, is for others to decide.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from plait.core.ids import RunId
from plait.core.plan import Keep
from plait.engines.factory import BLOCK_SIZE
from plait.engines.torch.idle import Idle

Policy = tuple[RunId, int | None]
"""Run and version whose weights made the content."""


class Blocks:
    """A ledger of ``n_blocks`` blocks."""

    def __init__(self, n_blocks: int, *, block_size: int = BLOCK_SIZE, reuse: bool = True) -> None:
        self.block_size = block_size
        self.n_blocks = n_blocks
        self.by_run: Counter[RunId] = Counter()
        self.n_evicted = 0
        """Blocks given up with their content so far."""
        self._reuse = reuse
        self._free = list(range(n_blocks - 1, -1, -1))
        self._refs = [0] * n_blocks
        self._owner: dict[int, RunId] = {}
        self._idle = Idle()
        self._found: dict[tuple[int, tuple[int, ...]], int] = {}
        self._key: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._uid: dict[int, int] = {}
        self._after: dict[int, set[int]] = {}
        self._roots: dict[Policy, tuple[int, set[int]]] = {}
        self._root_of: dict[int, Policy] = {}
        self._next_uid = 1

    @property
    def n_available(self) -> int:
        """Blocks that ``take`` could hand out now."""
        return len(self._free) + len(self._idle)

    @property
    def n_idle(self) -> int:
        return len(self._idle)

    @property
    def n_held(self) -> int:
        return self.n_blocks - self.n_available

    def blocks_for(self, n_tokens: int) -> int:
        return -(-n_tokens // self.block_size)

    def take(self, run_id: RunId, n: int) -> list[int]:
        """``n`` blocks of unknown content, held once by ``run_id``; the caller has checked room."""
        taken = []
        for _ in range(n):
            if not self._free:
                self._evict()
            block = self._free.pop()
            self._owner[block] = run_id
            self._hold(block)
            taken.append(block)
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks that are held or idle once more."""
        for block in blocks:
            self._idle.remove(block)
            self._hold(block)

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one hold on each, last block first."""
        for block in reversed(blocks):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self.by_run[self._owner[block]] -= 1
                if block in self._key:
                    self._idle.add(block)
                else:
                    self._free.append(block)

    def is_shared(self, block: int) -> bool:
        return self._refs[block] > 1

    def is_idle(self, block: int) -> bool:
        return block in self._idle

    def find(self, policy: Policy, tokens: Sequence[int]) -> tuple[list[int], int]:
        """Blocks that hold the longest known prefix of ``tokens`` in whole blocks, and its end.

        The last token is never covered: its logits must be computed. The blocks are not yet held.
        """
        uid, size = self.root(policy), self.block_size
        found: list[int] = []
        for i in range(0, (len(tokens) - 1) // size * size, size):
            block = self._found.get((uid, tuple(tokens[i : i + size])))
            if block is None:
                break
            found.append(block)
            uid = self._uid[block]
        return found, uid

    def root(self, policy: Policy) -> int:
        """Where the chain of a policy begins."""
        if policy not in self._roots:
            self._roots[policy] = (self._new_uid(), set())
        return self._roots[policy][0]

    def publish(self, policy: Policy, after: int, tokens: Sequence[int], block: int) -> int:
        """Make a block that has just become full findable; returns the end of its chain.

        If an equal block is known already, that one stays and this one is left unpublished.
        """
        key = (after, tuple(tokens))
        known = self._found.get(key)
        if known is not None:
            return self._uid[known]
        uid = self._new_uid()
        if self._reuse:
            self._found[key], self._key[block], self._uid[block] = block, key, uid
            self._after.setdefault(after, set()).add(block)
            self._root_of[block] = policy
            self.root(policy)
            self._roots[policy][1].add(block)
        return uid

    def mark(self, policy: Policy, tokens: Sequence[int], keep: Keep) -> None:
        """Say how soon the known blocks of a prefix are given up while nobody holds them.

        Dropping spares what leads to other blocks as well: somebody else may come back to it.
        """
        if policy not in self._roots:
            return
        found, _ = self.find(policy, (*tokens, 0))
        if keep is Keep.KEEP:
            for block in reversed(found):
                self._idle.keep(block)
        elif keep is Keep.DROP:
            own = len(found)
            while own and len(self._after.get(self._uid[found[own - 1]], ())) <= (own < len(found)):
                own -= 1
            for block in found[own:]:
                self._idle.drop(block)

    def forget_policy(self, policy: Policy) -> None:
        """Make nothing of this policy findable any more; what samples hold stays theirs."""
        _, blocks = self._roots.get(policy, (0, set()))
        while blocks:
            self._forget(next(iter(blocks)))
        self._roots.pop(policy, None)

    def resize(self, n_blocks: int) -> dict[int, int]:
        """Change the number of blocks; at most so many may be held. Returns moves old → new."""
        while self._idle and self.n_held + len(self._idle) > n_blocks:
            self._evict()
        if n_blocks >= self.n_blocks:
            self._free[:0] = range(n_blocks - 1, self.n_blocks - 1, -1)
            self._refs += [0] * (n_blocks - self.n_blocks)
            self.n_blocks = n_blocks
            return {}
        low = [b for b in self._free if b < n_blocks]
        high = [b for b in range(n_blocks, self.n_blocks) if self._refs[b] or b in self._idle]
        moves = {old: low.pop() for old in high}
        for old, new in moves.items():
            self._move(old, new)
        self._idle.rename(moves)
        self._free, self._refs, self.n_blocks = low, self._refs[:n_blocks], n_blocks
        return moves

    def _hold(self, block: int) -> None:
        if self._refs[block] == 0:
            self.by_run[self._owner[block]] += 1
        self._refs[block] += 1

    def _evict(self) -> None:
        before = len(self._key)
        self._forget(self._idle.pop())
        self.n_evicted += before - len(self._key)

    def _forget(self, block: int) -> None:
        """Make a block and what is found through it unfindable; free what nobody holds."""
        before = self._key[block][0]
        self._after[before].discard(block)
        if not self._after[before]:
            del self._after[before]
        left = [block]
        while left:
            block = left.pop()
            left += self._after.pop(self._uid[block], ())
            self._idle.remove(block)
            del self._found[self._key.pop(block)], self._uid[block]
            self._roots[self._root_of.pop(block)][1].discard(block)
            if self._refs[block] == 0:
                self._free.append(block)

    def _move(self, old: int, new: int) -> None:
        self._refs[new] = self._refs[old]
        self._owner[new] = self._owner.pop(old)
        if old in self._key:
            key = self._key[new] = self._key.pop(old)
            self._found[key], self._uid[new] = new, self._uid.pop(old)
            self._after[key[0]].discard(old)
            self._after[key[0]].add(new)
            policy = self._root_of[new] = self._root_of.pop(old)
            blocks = self._roots[policy][1]
            blocks.discard(old)
            blocks.add(new)

    def _new_uid(self) -> int:
        self._next_uid += 1
        return self._next_uid
