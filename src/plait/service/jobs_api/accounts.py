"""Accounts: who is calling, what it may use and has used, its keys; for operators, all tenants."""

import re
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from plait.core.errors import ConfigError, Forbidden
from plait.core.ids import TenantId
from plait.service.access import Access
from plait.service.auth import Caller, Operator
from plait.service.errors import responses
from plait.service.jobs_api.views import (
    IssuedView,
    KeysView,
    KeyView,
    Limit,
    Offset,
    TenantsView,
    TenantView,
    key_values,
    page,
    tenant_view,
)
from plait.service.limits import TenantLimits
from plait.service.ports import House, Who
from plait.service.usage import EventsView, QuotaView, UsageView, events_of, quota_of, usage_of

MAX_WEIGHT, MAX_PRIORITY = 1e6, 10**6
MAX_GRACE_S = 30 * 24 * 3600.0
TENANT_ID = r"^[a-z0-9][a-z0-9._-]{0,63}$"
TenantKey = Annotated[str, Path(pattern=TENANT_ID)]
KeyId = Annotated[str, Path(min_length=1, max_length=64)]
Weight = Annotated[float, Field(gt=0, le=MAX_WEIGHT, allow_inf_nan=False)]
Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
Label = Annotated[str, Field(max_length=100)]
Name = Annotated[str, Field(min_length=1, max_length=100)]


class Asked(BaseModel):
    """Body of a request: no key that is not declared."""

    model_config = ConfigDict(extra="forbid")


class NewKey(Asked):
    """A key to make. Another tenant's, or an operator's, only an operator makes."""

    label: Label = ""
    tenant_id: Annotated[str, Field(pattern=TENANT_ID)] | None = None
    admin: bool = False


class Rotation(Asked):
    """How long the old key goes on."""

    grace_s: Annotated[float, Field(ge=0, le=MAX_GRACE_S, allow_inf_nan=False)] = 0.0


class NewTenant(Asked):
    """A tenant to make. Its id is made of its name where none is given."""

    name: Name
    tenant_id: Annotated[str, Field(pattern=TENANT_ID)] | None = None
    weight: Weight = 1.0
    priority: Priority = 0
    limits: TenantLimits = TenantLimits()


class TenantChange(Asked):
    """What to change of a tenant; limits that are not given stay as they are."""

    name: Name | None = None
    weight: Weight | None = None
    priority: Priority | None = None
    limits: TenantLimits | None = None
    disabled: bool | None = None


class Me(BaseModel):
    """Whose key this is."""

    tenant_id: str
    name: str
    key_id: str
    admin: bool


def router(house: House) -> APIRouter:
    """Routes of the caller's account, and of tenants."""
    access = house.access
    api = APIRouter(tags=["accounts"], responses=responses(409))

    @api.get("/me")
    async def me(who: Caller) -> Me:
        """Whose key this is."""
        tenant = access.tenant(who.tenant_id)
        return Me(tenant_id=who.tenant_id, name=tenant.name, key_id=who.key_id, admin=who.admin)

    @api.get("/quota")
    async def quota(who: Caller) -> QuotaView:
        """What the caller's tenant may use, and uses."""
        return await quota_of(house, access.tenant(who.tenant_id))

    @api.get("/usage")
    async def usage(
        who: Caller,
        by: Literal["run", "day"] = "run",
        since: Annotated[str, Query(pattern=r"^\d{4}-\d{2}-\d{2}$")] = "0000-00-00",
        until: Annotated[str, Query(pattern=r"^\d{4}-\d{2}-\d{2}$")] = "9999-99-99",
        tenant_id: Annotated[str | None, Query(pattern=TENANT_ID)] = None,
    ) -> UsageView:
        """The ledger, by run or by day (both ends included); another tenant's for operators."""
        return await usage_of(house, _own(who, access, tenant_id), by, since, until)

    @api.get("/events")
    async def events(
        who: Caller,
        after: Annotated[int, Query(ge=0, le=2**53)] = 0,
        limit: Limit = 100,
    ) -> EventsView:
        """What happened to the caller's runs and jobs, oldest first."""
        return await events_of(house, who.tenant_id, after, limit)

    @api.get("/keys")
    async def keys(
        who: Caller,
        tenant_id: Annotated[str | None, Query(pattern=TENANT_ID)] = None,
        limit: Limit = 100,
        offset: Offset = 0,
    ) -> KeysView:
        """The tenant's keys; operators' keys are shown to operators only."""
        rows = access.seen(_own(who, access, tenant_id), who)
        views = [KeyView(**key_values(row)) for row in page(rows, limit, offset)]
        return KeysView(keys=views, total=len(rows))

    @api.post("/keys", status_code=201)
    async def new_key(asked: NewKey, who: Caller) -> IssuedView:
        """Make a key; its text is shown this once."""
        if asked.admin and not who.admin:
            raise Forbidden("only an operator's key makes operators' keys")
        issued = await access.issue(
            _own(who, access, asked.tenant_id), label=asked.label, admin=asked.admin
        )
        return IssuedView(**key_values(issued.row), key=issued.key)

    @api.post("/keys/{key_id}/rotate", status_code=201)
    async def rotate(key_id: KeyId, who: Caller, asked: Rotation | None = None) -> IssuedView:
        """A new key in the place of one, which ends now or after a grace."""
        tenant_id = access.owner(key_id, who)
        grace_s = asked.grace_s if asked is not None else 0.0
        issued = await access.rotate(tenant_id, key_id, grace_s=grace_s)
        return IssuedView(**key_values(issued.row), key=issued.key)

    @api.delete("/keys/{key_id}", status_code=204)
    async def revoke(key_id: KeyId, who: Caller) -> Response:
        """End a key."""
        await access.revoke(access.owner(key_id, who), key_id)
        return Response(status_code=204)

    @api.get("/tenants")
    async def tenants(_who: Operator, limit: Limit = 100, offset: Offset = 0) -> TenantsView:
        """All tenants."""
        found = access.tenants()
        views = [tenant_view(tenant) for tenant in page(found, limit, offset)]
        return TenantsView(tenants=views, total=len(found))

    @api.post("/tenants", status_code=201)
    async def new_tenant(asked: NewTenant, _who: Operator) -> TenantView:
        """Make a tenant."""
        tenant_id = TenantId(asked.tenant_id or _slug(asked.name))
        if any(tenant.tenant_id == tenant_id for tenant in access.tenants()):
            raise ConfigError(
                f"there is a tenant {tenant_id} already: change it, or choose another id"
            )
        tenant = await access.put_tenant(
            tenant_id,
            name=asked.name,
            weight=asked.weight,
            priority=asked.priority,
            limits=asked.limits,
        )
        return tenant_view(tenant)

    @api.patch("/tenants/{tenant_id}")
    async def change_tenant(tenant_id: TenantKey, asked: TenantChange, who: Operator) -> TenantView:
        """Change a tenant; what it has running goes on under the new limits."""
        if asked.disabled and tenant_id == who.tenant_id:
            raise ConfigError("this is your own tenant: another operator may disable it")
        old = access.tenant(TenantId(tenant_id))
        tenant = await access.put_tenant(
            old.tenant_id,
            name=old.name if asked.name is None else asked.name,
            weight=old.weight if asked.weight is None else asked.weight,
            priority=old.priority if asked.priority is None else asked.priority,
            limits=_changed(old.limits, asked.limits),
            disabled=old.disabled if asked.disabled is None else asked.disabled,
        )
        return tenant_view(tenant)

    return api


def _own(who: Who, access: Access, tenant_id: str | None) -> TenantId:
    """The caller's tenant, or another one for an operator."""
    if tenant_id is None or tenant_id == who.tenant_id:
        return who.tenant_id
    if not who.admin:
        raise Forbidden("this needs an operator's key")
    return access.tenant(TenantId(tenant_id)).tenant_id


def _changed(old: TenantLimits, asked: TenantLimits | None) -> TenantLimits:
    given = {} if asked is None else asked.model_dump(exclude_unset=True)
    return old.model_copy(update=given)


def _slug(name: str) -> str:
    slug = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:64]
    if not slug:
        raise ConfigError(f"no id can be made of {name[:40]!r}: give a tenant_id")
    return slug
