"""Errors: one root, one flat class per boundary that was crossed.

Each class has a stable ``code`` and one HTTP status; each message says in one line what went wrong
and what to do next.
"""

CLOSED = "the launch is closed: open it again"
"""What every operation says from the moment on at which its launch is left."""


class PlaitError(Exception):
    """Root of every error that plait raises on purpose."""

    code = "error"
    http_status = 500


class ConfigError(PlaitError):
    """A job file, flag or setting is wrong."""

    code = "config"
    http_status = 422


class ModelError(PlaitError):
    """A base model or adapter cannot be found, read or applied."""

    code = "model"
    http_status = 422


class RequestError(PlaitError):
    """An operation's arguments are wrong (ids out of range, unequal lengths, unknown loss)."""

    code = "request"
    http_status = 400


class CapacityError(PlaitError):
    """A request can never fit this machine, however long it waits."""

    code = "capacity"
    http_status = 422


class EnvironmentFailure(PlaitError):
    """An environment or tool failed or ran out of its time."""

    code = "environment"
    http_status = 502


class RewardError(PlaitError):
    """A reward function raised, hung, or returned something that is no reward."""

    code = "reward"
    http_status = 502


class EngineError(PlaitError):
    """An engine could not carry out a valid operation (out of memory)."""

    code = "engine"
    http_status = 500


class NotFinite(EngineError):
    """What a run's own numbers lead to (its learning rate, its advantages) is not finite."""

    code = "not_finite"
    http_status = 422


class NotDone(EngineError):
    """What was asked for builds on something before it that failed: it fails with that, and is the
    fault of whoever that is."""

    code = "not_done"

    def __init__(self, message: str, *, http_status: int = 500) -> None:
        super().__init__(message)
        self.http_status = http_status


class WorkerLost(PlaitError):
    """A worker process ended while it had work; the work is put back or reported."""

    code = "worker_lost"
    http_status = 503


class StoreError(PlaitError):
    """The durable store or the disk under it refused a write."""

    code = "store"
    http_status = 507


class RunEnded(PlaitError):
    """The run is cancelled, failed or finished; its operations are refused with the reason."""

    code = "run_ended"
    http_status = 409


class NotFound(PlaitError):
    """There is no such thing for this caller (what belongs to another tenant included)."""

    code = "not_found"
    http_status = 404


class Unauthorized(PlaitError):
    """No key, or one that is unknown or revoked."""

    code = "unauthorized"
    http_status = 401


class Forbidden(PlaitError):
    """The key is good, and does not allow this."""

    code = "forbidden"
    http_status = 403


class SessionEnded(PlaitError):
    """The client session is finished; what it would still ask for is refused."""

    code = "session_ended"
    http_status = 410


class RequestLost(PlaitError):
    """A sample of an earlier life of the server: ask again."""

    code = "request_lost"
    http_status = 410


class Limited(PlaitError):
    """Over a rate or a quota: ask again after ``retry_after_s``."""

    code = "limited"
    http_status = 429

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooLarge(PlaitError):
    """A body is larger than this server takes."""

    code = "too_large"
    http_status = 413


class HeadTooLarge(PlaitError):
    """A request's line and headers are larger than this server takes."""

    code = "head_too_large"
    http_status = 431


class SlowBody(PlaitError):
    """A body stopped coming."""

    code = "slow_body"
    http_status = 408


class Unsupported(PlaitError):
    """A body is encoded in a way that this server does not read."""

    code = "unsupported"
    http_status = 415


class RemoteError(PlaitError):
    """A server refused what a client of it asked, or could not be reached."""

    code = "remote"
    http_status = 502

    def __init__(self, message: str, *, http_status: int = 502) -> None:
        super().__init__(message)
        self.http_status = http_status
