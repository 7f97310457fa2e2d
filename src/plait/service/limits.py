"""Limits: how much of the service one tenant may use, and what it must wait for.

Decided here: whether a request is taken now (rate, open requests, bytes of bodies being read), and
whether a tenant's work is held back (tokens per minute, device-seconds). What is over a limit is
told to come again (``Limited``, with the seconds) or waits with a reason (``Hold``); it never
fails a run. Invariants: one tenant's use never changes another's answer; what was counted as open
is counted down again, however it ends. Memory is per known tenant, so it is bounded.

A bucket may be overdrawn: work is paid when it is done, and the debt is waited off. New limits
are no gift: a bucket stays as full as it was, in proportion, and a debt stays the same.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from plait.core.errors import Limited
from plait.core.ids import TenantId
from plait.service.places import Places

BURST_S = 5.0
"""Requests of so many seconds may come at once: a client's step does."""
MINUTE_S = 60.0
BUSY_RETRY_S = 1.0
"""When to come again if something open must end first: nobody knows when it will."""
SPENT_RETRY_S = 60.0
"""When to ask again whether an exhausted budget was raised."""

MIB = 2**20
Amount = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
Number = Annotated[int, Field(ge=1, le=2**53)]


class TenantLimits(BaseModel):
    """What an operator sets for a tenant; null: no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    requests_per_s: Amount | None = 500.0
    open_requests: Number | None = 4096
    """Requests being answered at once, long polls included."""
    body_bytes: Number | None = 256 * MIB
    """Of bodies that are held at once."""
    tokens_per_min: Amount | None = None
    device_s: Amount | None = None
    """Device-seconds in all, as the usage ledger counts them."""
    runs: Number | None = None
    """Models and jobs that are alive at once."""
    storage_bytes: Number | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Why a tenant's work does not start now, and when to ask again."""

    reason: str
    retry_after_s: float
    position: int = 0
    """Among those that wait for the same, from 1; 0 where there is no queue."""


class Bucket:
    """Tokens that come in at ``rate`` per second up to ``burst``."""

    __slots__ = ("_at", "_burst", "_held", "_rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._held, self._at = burst, now

    def at_rate(self, rate: float, burst: float, now: float) -> "Bucket":
        """The same at another rate: as full in proportion, or with the same debt."""
        self._fill(now)
        changed = Bucket(rate, burst, now)
        changed._held = self._held * (burst / self._burst if self._held > 0 else 1.0)
        return changed

    def take(self, n: float, now: float) -> float:
        """Take ``n``: 0; or take nothing: seconds until there are so many."""
        self._fill(now)
        if self._held >= min(n, self._burst):
            self._held -= n
            return 0.0
        return (min(n, self._burst) - self._held) / self._rate

    def spend(self, n: float, now: float) -> None:
        """Take ``n`` whether they are there or not."""
        self._fill(now)
        self._held -= n

    def wait_s(self, now: float) -> float:
        """Seconds until the debt is waited off."""
        self._fill(now)
        return max(0.0, -self._held / self._rate)

    def _fill(self, now: float) -> None:
        self._held = min(self._burst, self._held + max(0.0, now - self._at) * self._rate)
        self._at = max(self._at, now)


@dataclass(slots=True, kw_only=True)
class _Account:
    limits: TenantLimits
    requests: Bucket | None
    tokens: Bucket | None
    n_open: int = 0
    body_bytes: int = 0
    places: Places = field(default_factory=Places)
    device_s: float = 0.0


@dataclass(slots=True)
class Limits:
    """All tenants' accounts. For one event loop; ``now`` is a monotonic clock."""

    now: Callable[[], float]
    _accounts: dict[TenantId, _Account] = field(default_factory=dict)

    def put(self, tenant_id: TenantId, limits: TenantLimits, *, device_s: float = 0.0) -> None:
        """Know a tenant, or its new limits; what it has open and has used stays."""
        old = self._accounts.get(tenant_id)
        rate, tokens = limits.requests_per_s, limits.tokens_per_min
        if old is not None and old.limits == limits:
            return
        self._accounts[tenant_id] = _Account(
            limits=limits,
            requests=None
            if rate is None
            else self._bucket(old.requests if old else None, rate, max(1.0, rate * BURST_S)),
            tokens=None
            if tokens is None
            else self._bucket(old.tokens if old else None, tokens / MINUTE_S, tokens),
            n_open=old.n_open if old else 0,
            body_bytes=old.body_bytes if old else 0,
            places=old.places if old else Places(),
            device_s=old.device_s if old else device_s,
        )

    def _bucket(self, old: Bucket | None, rate: float, burst: float) -> Bucket:
        now = self.now()
        return Bucket(rate, burst, now) if old is None else old.at_rate(rate, burst, now)

    @contextmanager
    def request(self, tenant_id: TenantId) -> Iterator[None]:
        """A request from its headers to its answer; Limited if it is not taken now."""
        account = self._accounts[tenant_id]
        if account.requests is not None and (wait_s := account.requests.take(1, self.now())) > 0:
            raise Limited(
                f"over {account.limits.requests_per_s:g} requests a second: send fewer, or ask for "
                "a higher limit",
                retry_after_s=wait_s,
            )
        most = account.limits.open_requests
        if most is not None and account.n_open >= most:
            raise Limited(
                f"{most} requests are open already: wait for some of them",
                retry_after_s=BUSY_RETRY_S,
            )
        account.n_open += 1
        try:
            yield
        finally:
            self._accounts[tenant_id].n_open -= 1

    @contextmanager
    def body(self, tenant_id: TenantId) -> Iterator[Callable[[int], None]]:
        """A body from its first byte to the answer: call it with each part's size; Limited when
        the tenant holds too much at once."""
        held = 0

        def more(n_bytes: int) -> None:
            nonlocal held
            account = self._accounts[tenant_id]
            most = account.limits.body_bytes
            if most is not None and account.body_bytes > 0 and account.body_bytes + n_bytes > most:
                raise Limited(
                    f"{most} bytes of bodies are being read already: send fewer at once",
                    retry_after_s=BUSY_RETRY_S,
                )
            account.body_bytes += n_bytes
            held += n_bytes

        try:
            yield more
        finally:
            self._accounts[tenant_id].body_bytes -= held

    def hold(self, tenant_id: TenantId) -> Hold | None:
        """Why this tenant's work must wait now, if it must."""
        account = self._accounts.get(tenant_id)
        if account is None:
            return None
        limits = account.limits
        if limits.device_s is not None and account.device_s >= limits.device_s:
            return Hold(
                reason=f"the budget of {limits.device_s:g} device-seconds is used up: "
                "ask the operator for more",
                retry_after_s=SPENT_RETRY_S,
            )
        if account.tokens is not None and (wait_s := account.tokens.wait_s(self.now())) > 0:
            return Hold(
                reason=f"over {limits.tokens_per_min:g} tokens a minute: goes on in {wait_s:.0f} s",
                retry_after_s=wait_s,
            )
        return None

    def spend(self, tenant_id: TenantId, *, tokens: int = 0, device_s: float = 0.0) -> None:
        """Count work that was done."""
        account = self._accounts.get(tenant_id)
        if account is None:
            return
        account.device_s += device_s
        if account.tokens is not None:
            account.tokens.spend(tokens, self.now())

    def take_run(self, tenant_id: TenantId, who: str) -> Hold | None:
        """Count one more run (a model, a job) as alive; or why ``who`` must wait, and asks again
        soon."""
        account = self._accounts.get(tenant_id)
        if account is None:
            return None
        places, most = account.places, account.limits.runs
        if position := places.take(who, most, self.now()):
            return Hold(
                reason=f"{places.n_taken} of {most} runs are alive: one of them must end first; "
                f"position {position}",
                retry_after_s=BUSY_RETRY_S,
                position=position,
            )
        return None

    def give_run(self, tenant_id: TenantId) -> None:
        """A run that was counted has ended, or was let go."""
        account = self._accounts.get(tenant_id)
        if account is not None:
            account.places.give()

    def check_storage(self, tenant_id: TenantId, stored: int, more: int) -> None:
        """Limited if a tenant whose checkpoints take ``stored`` bytes may not store ``more``."""
        account = self._accounts.get(tenant_id)
        most = account.limits.storage_bytes if account is not None else None
        if most is not None and stored + more > most:
            raise Limited(
                f"checkpoints take {stored} of {most} bytes and this one needs {more}: delete "
                "some, or let some expire",
                retry_after_s=SPENT_RETRY_S,
            )

    def used(self, tenant_id: TenantId) -> dict[str, float]:
        """What is counted of a tenant now."""
        account = self._accounts[tenant_id]
        return {
            "open_requests": account.n_open,
            "runs": account.places.n_taken,
            "body_bytes": account.body_bytes,
            "device_s": account.device_s,
        }
