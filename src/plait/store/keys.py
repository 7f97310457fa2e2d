"""Keys: what callers prove who they are with.

Invariant: a key itself is never written, only its SHA-256 and as much of its beginning as tells a
person which one it is. Keys are long and random (whoever makes them sees to that), so a plain hash
cannot be searched. A revoked key stays as a row. Whom a key opens for is ``service.access``'.
"""

from dataclasses import dataclass
from hashlib import sha256

from plait.core.errors import NotFound, StoreError
from plait.core.ids import TenantId
from plait.store.database import Database
from plait.store.schema import api_keys
from plait.store.tenants import find_tenant

SHOWN = 12
"""Characters of a key that are kept: ``tml-`` and eight more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """One key, without the key."""

    key_id: str
    tenant_id: TenantId
    sha256: str
    prefix: str
    label: str
    admin: bool
    created_at: float
    revoked_at: float | None


class Keys:
    """Repository of API keys."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self,
        key_id: str,
        key: str,
        *,
        tenant_id: TenantId,
        label: str = "",
        admin: bool = False,
        now: float,
    ) -> KeyRow:
        """Let ``key`` speak for a tenant that exists; StoreError if the key or its id is taken."""
        row = KeyRow(
            key_id=key_id,
            tenant_id=tenant_id,
            sha256=hashed(key),
            prefix=key[:SHOWN],
            label=label,
            admin=admin,
            created_at=now,
            revoked_at=None,
        )
        taken = (api_keys.c.key_id == key_id) | (api_keys.c.sha256 == row.sha256)
        with self._database.write() as connection:
            if connection.execute(api_keys.select().where(taken)).first() is not None:
                raise StoreError("there is such a key already: make another one")
            if find_tenant(connection, tenant_id) is None:
                raise NotFound(f"there is no tenant {tenant_id}: create it first")
            values = {name: getattr(row, name) for name in KeyRow.__slots__}
            connection.execute(api_keys.insert().values(**values))
        return row

    def list(self, *, tenant_id: TenantId | None = None) -> list[KeyRow]:
        """All keys, or one tenant's, the revoked ones included, in order of creation."""
        query = api_keys.select().order_by(api_keys.c.created_at, api_keys.c.key_id)
        if tenant_id is not None:
            query = query.where(api_keys.c.tenant_id == tenant_id)
        with self._database.read() as connection:
            return [KeyRow(**found._mapping) for found in connection.execute(query)]

    def revoke(self, key_id: str, *, now: float) -> None:
        """From a time on (in a rotation it lies ahead) the key opens nothing; the earliest that was
        given counts. NotFound."""
        key = api_keys.c.key_id == key_id
        later = api_keys.c.revoked_at.is_(None) | (api_keys.c.revoked_at > now)
        with self._database.write() as connection:
            if connection.execute(api_keys.select().where(key)).one_or_none() is None:
                raise NotFound(f"there is no key {key_id}: list the keys")
            connection.execute(api_keys.update().where(key, later).values(revoked_at=now))


def hashed(key: str) -> str:
    """What is stored of a key."""
    return sha256(key.encode(errors="surrogatepass")).hexdigest()
