"""The block ledger: who holds how many cache blocks. Counts only; the scripted engine has no cache.

Invariants: Σ held = used ≤ size after every ``hold``; an owner that holds nothing is not listed.
"""

from collections.abc import Hashable


class BlockLedger:
    """Blocks by owner, under a limit."""

    def __init__(self, n_blocks: int) -> None:
        self.size = n_blocks
        self._held: dict[Hashable, int] = {}
        self._used = 0

    @property
    def used(self) -> int:
        """Blocks that are held by anybody."""
        return self._used

    @property
    def free(self) -> int:
        """Blocks that nobody holds; negative while a shrunken ledger is being emptied."""
        return self.size - self._used

    def held(self, owner: Hashable) -> int:
        """Blocks of one owner."""
        return self._held.get(owner, 0)

    def hold(self, owner: Hashable, n_blocks: int) -> None:
        """Let ``owner`` hold at least ``n_blocks`` in all."""
        more = n_blocks - self.held(owner)
        if more <= 0:
            return
        if more > self.free:
            raise RuntimeError(f"{more} blocks asked for, {self.free} free: preempt first")
        self._held[owner] = n_blocks
        self._used += more

    def release(self, owner: Hashable) -> None:
        """Give back everything that ``owner`` holds."""
        self._used -= self._held.pop(owner, 0)
