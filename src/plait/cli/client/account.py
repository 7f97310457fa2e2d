"""Account: ``plait quota`` and ``plait usage``."""

from typing import Any

from plait.cli.client.session import connected
from plait.cli.client.show import said, show_rows
from plait.cli.console import show_json
from plait.core.errors import ConfigError

USAGE = {
    "prompt tokens": "prompt_tokens",
    "sampled": "sampled_tokens",
    "trained": "trained_tokens",
    "device s": "device_s",
    "storage": "storage_bytes",
}
BY = {"run": "run_id", "day": "day"}


def quota_command(*, as_json: bool) -> int:
    """Limits and what is used of them."""
    with connected() as server:
        found = server.get("/v1/quota")
    if as_json:
        show_json(found)
        return 0
    weight, priority = found.get("weight"), found.get("priority")
    print(f"{found['tenant_id']}: weight {said('', weight)}, priority {said('', priority)}")
    rows = [_limit(name, limit) for name, limit in sorted(found["limits"].items())]
    columns = {"limit": "name", "used": "used", "of": "limit", "unit": "unit"}
    show_rows(columns, rows, none="no limits")
    return 0


def usage_command(*, by: str, tenant: str | None, as_json: bool) -> int:
    """The ledger, by run or day, and its sum: one's own, or another tenant's for an operator."""
    if by not in BY:
        raise ConfigError(f"--by must be run or day, not {by}")
    with connected() as server:
        found = server.get("/v1/usage", by=by, tenant_id=tenant)
    if as_json:
        show_json(found)
        return 0
    rows = [*found["usage"], {**found["total"], BY[by]: "total"}]
    show_rows({by: BY[by], **USAGE}, rows, none="nothing yet")
    return 0


def _limit(name: str, limit: dict[str, Any]) -> dict[str, str]:
    key = name if name.endswith("_bytes") else ""
    shown = {part: said(key, limit.get(part)) for part in ("used", "limit")}
    return {"name": name, "unit": "" if key else limit["unit"], **shown}
