"""Waited: for how long one job has waited, by the reason that it was given."""


class Waited:
    """Of one job."""

    def __init__(self) -> None:
        self.by_reason_s: dict[str, float] = {}
        """Waits that are over."""
        self._reason = ""
        self._since_s = 0.0

    def on(self, reason: str, now: float) -> None:
        """It waits for that from now on; ``""``: for nothing."""
        if self._reason:
            waited_s = self.by_reason_s.get(self._reason, 0.0)
            self.by_reason_s[self._reason] = waited_s + now - self._since_s
        self._reason, self._since_s = reason, now
