"""``plait keys``: list, make, revoke. A new key is printed once and nowhere kept."""

from typing import Any

from plait.cli.client.server import segment
from plait.cli.client.session import connected
from plait.cli.client.show import MOST, show_rows
from plait.cli.console import show_json

COLUMNS = {
    "id": "key_id",
    "begins": "prefix",
    "label": "label",
    "tenant": "tenant_id",
    "admin": "admin",
    "created": "created_at",
    "revoked": "revoked_at",
}


def keys_command(*, tenant: str | None = None, as_json: bool) -> int:
    """List keys: one's own tenant's, or another's for an operator."""
    with connected() as server:
        found = server.get("/v1/keys", tenant_id=tenant, limit=MOST)
    if as_json:
        show_json(found)
    else:
        show_rows(COLUMNS, found["keys"], none="no keys", total=found.get("total"))
    return 0


def add_key_command(label: str, *, tenant: str | None, admin: bool, as_json: bool) -> int:
    """Make a key and show it."""
    body: dict[str, str | bool] = {"label": label}
    if tenant is not None:
        body["tenant_id"] = tenant
    if admin:
        body["admin"] = True
    with connected() as server:
        return _shown(server.post("/v1/keys", body), as_json=as_json)


def rotate_key_command(key: str, *, grace_s: float, as_json: bool) -> int:
    """Make a key like ``key``, which is refused after ``grace_s``."""
    with connected() as server:
        made = server.post(f"/v1/keys/{segment(key)}/rotate", {"grace_s": grace_s})
    return _shown(made, as_json=as_json)


def revoke_key_command(key: str, *, as_json: bool) -> int:
    """Revoke a key."""
    with connected() as server:
        server.delete(f"/v1/keys/{segment(key)}")
    if as_json:
        show_json({"revoked": key})
    else:
        print(f"revoked {key}")
    return 0


def _shown(made: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        show_json(made)
    else:
        print(f"{made['key']}\n{made['key_id']}: keep it, it is not shown again")
    return 0
