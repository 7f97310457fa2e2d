"""Access: tenants, their keys and their limits, as the running service knows them.

The store is the truth; all of it is held in memory, for this process is its only writer and every
request asks. Invariants: a key is shown once, when it is made, and kept as a hash; a revoked key,
or one of a disabled tenant, opens nothing from that moment on (a rotated one: from the end of its
grace); what is written is in the store before it has an effect.
"""

import asyncio
import base64
import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from plait.core.errors import ConfigError, NotFound, Unauthorized
from plait.core.ids import LOCAL_TENANT, TenantId
from plait.service.limits import Limits, TenantLimits
from plait.service.ports import Calls, Who
from plait.store.keys import KeyRow
from plait.store.store import Store
from plait.store.tenants import TenantRow

PREFIX = "tml-"
"""What the Tinker SDK wants every key to begin with."""
KEY_BYTES = 32
"""Of randomness in a key: nobody guesses it, so wrong ones need no counting."""
MAX_KEYS = 1000
"""Of one tenant, revoked ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One tenant, its limits read."""

    tenant_id: TenantId
    name: str
    weight: float
    priority: int
    limits: TenantLimits
    disabled: bool
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A new key: the only time that its text is seen."""

    key: str
    row: KeyRow


class Access:
    """For one event loop. ``open`` makes one."""

    def __init__(
        self,
        store: Store,
        writer: Calls,
        *,
        wall: Callable[[], float],
        now: Callable[[], float],
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._store, self._writer, self._wall, self._draw = store, writer, wall, draw
        self.limits = Limits(now)
        self._tenants: dict[TenantId, Tenant] = {}
        self._keys: dict[str, KeyRow] = {}
        """By id, revoked ones too."""
        self._by_hash: dict[str, str] = {}

    @classmethod
    async def open(
        cls,
        store: Store,
        writer: Calls,
        *,
        wall: Callable[[], float],
        now: Callable[[], float],
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> Self:
        """Read everything from the store."""
        access = cls(store, writer, wall=wall, now=now, draw=draw)
        for row in await asyncio.to_thread(store.tenants.list):
            used = await asyncio.to_thread(store.usage.of_tenant, row.tenant_id)
            access._know(row, device_s=sum(one.device_s for one in used))
        for key in await asyncio.to_thread(store.keys.list):
            access._keys[key.key_id] = key
            access._by_hash[key.sha256] = key.key_id
        return access

    def caller(self, key: str) -> Who:
        """Whose key this is; Unauthorized if it opens nothing."""
        row = self._keys.get(self._by_hash.get(_hash(key), ""))
        tenant = self._tenants.get(row.tenant_id) if row is not None else None
        if row is None or tenant is None or not self._opens(row):
            raise Unauthorized("this key is unknown or revoked: ask the operator for one")
        if tenant.disabled:
            raise Unauthorized("this tenant is disabled: ask the operator")
        return Who(tenant_id=row.tenant_id, key_id=row.key_id, admin=row.admin)

    def opens(self, who: Who) -> bool:
        """True while the key that a caller came with opens anything: streams go on for long."""
        row, tenant = self._keys.get(who.key_id), self._tenants.get(who.tenant_id)
        opens = row is not None and self._opens(row)
        return opens and tenant is not None and not tenant.disabled

    @property
    def has_keys(self) -> bool:
        """True if any key opens anything."""
        return any(self._opens(row) for row in self._keys.values())

    def tenant(self, tenant_id: TenantId) -> Tenant:
        """One tenant; NotFound if there is none."""
        if tenant_id not in self._tenants:
            raise NotFound(f"there is no tenant {tenant_id}")
        return self._tenants[tenant_id]

    def tenants(self) -> list[Tenant]:
        """All, in order of their ids."""
        return [self._tenants[tenant_id] for tenant_id in sorted(self._tenants)]

    async def put_tenant(
        self,
        tenant_id: TenantId,
        *,
        name: str = "",
        weight: float = 1.0,
        priority: int = 0,
        limits: TenantLimits | None = None,
        disabled: bool = False,
    ) -> Tenant:
        """Make a tenant, or change it; what it has running goes on under the new limits."""
        old = self._tenants.get(tenant_id)
        repository = self._store.tenants
        if old is None:
            await self._writer.write(repository.ensure, tenant_id, now=self._wall())
        row = await self._writer.write(
            repository.update,
            tenant_id,
            name=name or tenant_id,
            weight=weight,
            priority=priority,
            limits=(limits or TenantLimits()).model_dump(),
            disabled=disabled,
        )
        return self._know(row)

    def keys(self, tenant_id: TenantId) -> list[KeyRow]:
        """A tenant's keys, oldest first."""
        rows = (row for row in self._keys.values() if row.tenant_id == tenant_id)
        return sorted(rows, key=lambda row: (row.created_at, row.key_id))

    def seen(self, tenant_id: TenantId, who: Who) -> list[KeyRow]:
        """Those of a tenant's keys that the caller may see."""
        return [row for row in self.keys(tenant_id) if _sees(who, row)]

    async def issue(self, tenant_id: TenantId, *, label: str = "", admin: bool = False) -> Issued:
        """A new key of a tenant."""
        self.tenant(tenant_id)
        if len(self.keys(tenant_id)) >= MAX_KEYS:
            raise ConfigError(f"tenant {tenant_id} has had {MAX_KEYS} keys: use another tenant")
        text = PREFIX + base64.urlsafe_b64encode(self._draw(KEY_BYTES)).rstrip(b"=").decode()
        row = await self._writer.write(
            self._store.keys.add,
            f"key-{self._draw(8).hex()}",
            text,
            tenant_id=tenant_id,
            label=label,
            admin=admin,
            now=self._wall(),
        )
        self._keys[row.key_id] = row
        self._by_hash[row.sha256] = row.key_id
        return Issued(key=text, row=row)

    async def revoke(self, tenant_id: TenantId, key_id: str, *, grace_s: float = 0.0) -> KeyRow:
        """End a key, now or in ``grace_s``; one that has ended stays as it is."""
        row = self._own(tenant_id, key_id)
        if row.revoked_at is not None and row.revoked_at <= self._wall() + grace_s:
            return row
        at = self._wall() + grace_s
        await self._writer.write(self._store.keys.revoke, key_id, now=at)
        row = replace(row, revoked_at=at)
        self._keys[key_id] = row
        return row

    async def rotate(self, tenant_id: TenantId, key_id: str, *, grace_s: float = 0.0) -> Issued:
        """A new key in the place of one, which goes on for ``grace_s``."""
        old = self._own(tenant_id, key_id)
        if not self._opens(old):
            raise NotFound(f"key {key_id} is revoked: make a new one")
        issued = await self.issue(tenant_id, label=old.label, admin=old.admin)
        await self.revoke(tenant_id, key_id, grace_s=grace_s)
        return issued

    async def ensure_local_key(self) -> str | None:
        """Where no operator's key opens anything (the first start, or all are lost and revoked):
        one for this machine's user, shown once."""
        if any(row.admin and self._opens(row) for row in self._keys.values()):
            return None
        if LOCAL_TENANT not in self._tenants or self._tenants[LOCAL_TENANT].disabled:
            await self.put_tenant(LOCAL_TENANT, name="local")
        return (await self.issue(LOCAL_TENANT, label="local", admin=True)).key

    def owner(self, key_id: str, who: Who) -> TenantId:
        """The tenant of a key that the caller may see; NotFound."""
        row = self._keys.get(key_id)
        if row is None or not _sees(who, row):
            raise NotFound(f"there is no key {key_id}")
        return row.tenant_id

    def _own(self, tenant_id: TenantId, key_id: str) -> KeyRow:
        row = self._keys.get(key_id)
        if row is None or row.tenant_id != tenant_id:
            raise NotFound(f"there is no key {key_id}")
        return row

    def _opens(self, row: KeyRow) -> bool:
        return row.revoked_at is None or self._wall() < row.revoked_at

    def _know(self, row: TenantRow, *, device_s: float = 0.0) -> Tenant:
        values: dict[str, Any] = dict(row.limits)
        tenant = Tenant(
            tenant_id=row.tenant_id,
            name=row.name,
            weight=row.weight,
            priority=row.priority,
            limits=TenantLimits.model_validate(values),
            disabled=row.disabled,
            created_at=row.created_at,
        )
        self._tenants[row.tenant_id] = tenant
        self.limits.put(row.tenant_id, tenant.limits, device_s=device_s)
        return tenant


def _sees(who: Who, row: KeyRow) -> bool:
    """An operator sees all keys; others their tenant's, but no operator's: who may put a new key in
    the place of one has what it may do."""
    return who.admin or (row.tenant_id == who.tenant_id and not row.admin)


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
