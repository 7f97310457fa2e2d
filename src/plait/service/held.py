"""Held: what a model's requests keep in the store until nobody will read it again: those that
have not ended, and gradients that no step has committed. Pure.

One client can neither fill the disk that others need nor the memory of the server: over
``MAX_BYTES`` or ``MAX_REQUESTS``, or over ``MODELS`` times as much with all of its tenant's models
together, it is told to come again (``Limited``, which the SDK obeys). What commits is taken up to
twice as much, since it makes room, and what others wait for always is.
"""

from plait.core.errors import Limited

MAX_BYTES = 4 << 30
"""A hundred million trained tokens: no step needs as much."""
MAX_REQUESTS = 100_000
MODELS = 4
"""A tenant may have any number of models: however many, they hold no more than so many may."""
AGAIN_S = 5.0


class Total:
    """What all models of one tenant hold."""

    __slots__ = ("n_bytes", "n_requests")

    def __init__(self) -> None:
        self.n_requests = self.n_bytes = 0

    def over(self, share: int) -> bool:
        """True if there is no room for one more."""
        return self.n_requests >= share * MAX_REQUESTS or self.n_bytes >= share * MAX_BYTES


class Held:
    """Bodies of one model's requests, by number."""

    def __init__(self, tenant: Total | None = None) -> None:
        self.sizes: dict[int, int] = {}
        self._own, self._tenant = Total(), tenant or Total()

    @property
    def n_bytes(self) -> int:
        """Of all of them."""
        return self._own.n_bytes

    def check(self, *, commits: bool) -> None:
        """Limited if there is no room for one more."""
        share = 2 if commits else 1
        for total, many, whose in (
            (self._own, 1, "this model"),
            (self._tenant, MODELS, "all your models"),
        ):
            if total.over(many * share):
                raise Limited(
                    f"{total.n_requests} requests of {whose} ({total.n_bytes >> 20} MiB) have not "
                    "ended, or are gradients that no optim_step has followed: wait for them, or "
                    "call optim_step",
                    retry_after_s=AGAIN_S,
                )

    def put(self, seq: int, size: int) -> None:
        """A request has come."""
        self.drop(seq)
        self.sizes[seq] = size
        self._count(1, size)

    def drop(self, seq: int) -> None:
        """Nobody will read its body again."""
        if (size := self.sizes.pop(seq, None)) is not None:
            self._count(-1, -size)

    def drop_through(self, seq: int) -> None:
        """Nor those of all before it, and its own."""
        for held in [held for held in self.sizes if held <= seq]:
            self.drop(held)

    def let_go(self) -> None:
        """The model leaves memory."""
        self.drop_through(max(self.sizes, default=-1))

    def _count(self, n: int, n_bytes: int) -> None:
        for total in (self._own, self._tenant):
            total.n_requests += n
            total.n_bytes += n_bytes
