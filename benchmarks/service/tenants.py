"""Tenants of a server that a figure needs: each with a key of its own, made by the operator's."""

from dataclasses import replace

import httpx

from benchmarks.service.servers import Served


def new_tenant(served: Served, name: str) -> Served:
    """The same server, as another tenant sees it."""
    with httpx.Client(base_url=served.url, headers={"X-API-Key": served.key}) as operator:
        tenant = operator.post("/v1/tenants", json={"name": name})
        tenant.raise_for_status()
        asked = {"label": name, "tenant_id": tenant.json()["tenant_id"]}
        key = operator.post("/v1/keys", json=asked)
        key.raise_for_status()
    return replace(served, key=key.json()["key"])
