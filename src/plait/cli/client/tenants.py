"""``plait tenants``: what an operator sets for each of them."""

from collections.abc import Sequence
from typing import Any

from plait.cli.client.server import segment
from plait.cli.client.session import connected
from plait.cli.client.show import MOST, said, show_rows
from plait.cli.console import show_json
from plait.core.errors import ConfigError

COLUMNS = {
    "id": "tenant_id",
    "name": "name",
    "weight": "weight",
    "priority": "priority",
    "disabled": "disabled",
    "limits": "limits",
}


def tenants_command(*, as_json: bool) -> int:
    """List tenants."""
    with connected() as server:
        found = server.get("/v1/tenants", limit=MOST)
    if as_json:
        show_json(found)
    else:
        rows = [
            {**row, "limits": _limits_text(row.get("limits") or {})} for row in found["tenants"]
        ]
        show_rows(COLUMNS, rows, none="no tenants", total=found.get("total"))
    return 0


def add_tenant_command(
    name: str,
    *,
    weight: float | None,
    priority: int | None,
    limits: Sequence[str],
    as_json: bool,
) -> int:
    """Add a tenant."""
    body = {"name": name, **_given(weight=weight, priority=priority, limits=limits)}
    with connected() as server:
        return _shown(server.post("/v1/tenants", body), as_json=as_json)


def set_tenant_command(
    tenant: str,
    *,
    weight: float | None,
    priority: int | None,
    limits: Sequence[str],
    disabled: bool | None,
    as_json: bool,
) -> int:
    """Change what is given of a tenant."""
    body = _given(weight=weight, priority=priority, limits=limits)
    if disabled is not None:
        body["disabled"] = disabled
    if not body:
        raise ConfigError("nothing to change: give --weight, --priority, --limit or --disable")
    with connected() as server:
        return _shown(server.patch(f"/v1/tenants/{segment(tenant)}", body), as_json=as_json)


def parse_limits(pairs: Sequence[str]) -> dict[str, float | int | None]:
    """``name=number`` or ``name=none`` of ``--limit``."""
    limits: dict[str, float | int | None] = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        try:
            number = float(text)
            ok = bool(name) and 0 <= number < float("inf")
        except ValueError:
            number, ok = 0.0, bool(name) and text == "none"
        if not ok:
            raise ConfigError(f"--limit {pair}: write it as NAME=NUMBER or NAME=none")
        whole = int(number) if number == int(number) else number
        limits[name] = None if text == "none" else whole
    return limits


def _given(*, weight: float | None, priority: int | None, limits: Sequence[str]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if weight is not None:
        body["weight"] = weight
    if priority is not None:
        body["priority"] = priority
    if limits:
        body["limits"] = parse_limits(limits)
    return body


def _shown(tenant: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        show_json(tenant)
    else:
        print(f"{tenant['name']}: {tenant['tenant_id']}")
    return 0


def _limits_text(limits: dict[str, Any]) -> str:
    return ", ".join(f"{n}={said(n, v)}" for n, v in sorted(limits.items()) if v is not None)
