"""Account: what the rows of one engine have taken: a share of its worker's time, and cache."""

from plait.sim.row import Row


class Account:
    """Of one engine."""

    def __init__(self, n_devices: int) -> None:
        self._n_devices = n_devices
        self.worked_s = 0.0
        """Of the engine's own time since the beginning, up to the last charge."""
        self._spent_s = 0.0
        """That a row which was there from the beginning has been charged."""

    def charge(self, seconds: float, n_rows: int, n_ended: int) -> None:
        """So long the rows have shared the worker's time evenly; of them ``n_ended`` have left
        meanwhile, half of the time in on average."""
        self.worked_s += seconds
        if n_rows or n_ended:
            self._spent_s += seconds / (n_rows + n_ended / 2)

    def joined(self, row: Row, now: float) -> None:
        """A row is in the batch."""
        row.since_s, row.spent_0, row.held_0 = now, self._spent_s, row.held
        row.portion.n_rows += 1

    def left(self, row: Row, now: float) -> None:
        """It is not any more."""
        row.portion.n_rows -= 1
        row.portion.charge(
            device_s=(self._spent_s - row.spent_0) * self._n_devices,
            held_s=(now - row.since_s) * (row.held_0 + row.held) / 2,
        )
