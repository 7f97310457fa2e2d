"""``plait models`` and ``plait envs``."""

from dataclasses import asdict

from rich.table import Table

from plait.cli.console import show, show_json
from plait.envs import registry as environments
from plait.models import registry as base_models


def models_command(*, as_json: bool) -> int:
    """List base models."""
    entries = base_models.known()
    if as_json:
        show_json([{**asdict(e), "path": e.path and str(e.path)} for e in entries])
        return 0
    table = Table("name", "kind", "available", "description")
    for entry in entries:
        state = "yes" if entry.available else entry.hint
        table.add_row(entry.name, entry.kind, state, entry.description)
    show(table)
    return 0


def envs_command(*, as_json: bool) -> int:
    """List environments."""
    entries = environments.known()
    if as_json:
        rows = [{"name": n, "description": d, "keys": list(k)} for n, d, k in entries]
        show_json(rows)
        return 0
    table = Table("name", "description", "keys")
    for name, description, keys in entries:
        table.add_row(name, description, ", ".join(keys))
    show(table)
    return 0
