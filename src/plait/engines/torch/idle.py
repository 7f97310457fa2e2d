"""Idle: blocks that nobody holds and whose content may be wanted again, in the order of going.

Least recently used first; dropped ones before, kept ones after all others. A block that is held
again has forgotten what it was marked as.
"""

from collections import OrderedDict
from collections.abc import Mapping


class Idle:
    """The order in which idle blocks are given up."""

    def __init__(self) -> None:
        self._plain: OrderedDict[int, None] = OrderedDict()
        self._kept: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._plain) + len(self._kept)

    def __contains__(self, block: int) -> bool:
        return block in self._plain or block in self._kept

    def add(self, block: int) -> None:
        self._plain[block] = None

    def remove(self, block: int) -> None:
        """Blocks that are not idle are ignored."""
        self._plain.pop(block, None)
        self._kept.pop(block, None)

    def keep(self, block: int) -> None:
        """Let it go last; ignored if it is not idle."""
        if block in self:
            self.remove(block)
            self._kept[block] = None

    def drop(self, block: int) -> None:
        """Let it go first; ignored if it is not idle, or kept for somebody."""
        if block in self._plain:
            self._plain.move_to_end(block, last=False)

    def pop(self) -> int:
        """The next to go."""
        return (self._plain or self._kept).popitem(last=False)[0]

    def rename(self, new_names: Mapping[int, int]) -> None:
        """Blocks have changed their places; their order stays."""
        self._plain = OrderedDict((new_names.get(b, b), None) for b in self._plain)
        self._kept = OrderedDict((new_names.get(b, b), None) for b in self._kept)
