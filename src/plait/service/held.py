"""Held: what a model's requests keep in the store until nobody will read it again: those that
have not ended, and gradients that no step has committed. Pure.

One client can neither fill the disk that others need nor the memory of the server: over
``MAX_BYTES`` or ``MAX_REQUESTS`` it is told to come again (``Limited``, which the SDK obeys). What
commits is taken up to twice as much, since it makes room, and what others wait for always is.
"""

from plait.core.errors import Limited

MAX_BYTES = 4 << 30
"""A hundred million trained tokens: no step needs as much."""
MAX_REQUESTS = 100_000
AGAIN_S = 5.0


class Held:
    """Bodies of one model's requests, by number."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.n_bytes = 0

    def check(self, *, commits: bool) -> None:
        """Limited if there is no room for one more."""
        share = 2 if commits else 1
        if len(self.sizes) >= share * MAX_REQUESTS or self.n_bytes >= share * MAX_BYTES:
            raise Limited(
                f"{len(self.sizes)} requests of this model ({self.n_bytes >> 20} MiB) have not "
                "ended, or are gradients that no optim_step has followed: wait for them, or call "
                "optim_step",
                retry_after_s=AGAIN_S,
            )

    def put(self, seq: int, size: int) -> None:
        """A request has come."""
        self.drop(seq)
        self.sizes[seq] = size
        self.n_bytes += size

    def drop(self, seq: int) -> None:
        """Nobody will read its body again."""
        self.n_bytes -= self.sizes.pop(seq, 0)

    def drop_through(self, seq: int) -> None:
        """Nor those of all before it, and its own."""
        for held in [held for held in self.sizes if held <= seq]:
            self.drop(held)
