"""``plait checkpoints``: list them, or delete some."""

from collections.abc import Sequence

from plait.cli.client.session import connected
from plait.cli.client.show import show_rows
from plait.cli.console import show_json

COLUMNS = {
    "path": "path",
    "kind": "kind",
    "size": "size_bytes",
    "created": "created_at",
    "expires": "expires_at",
    "public": "public",
}


def checkpoints_command(
    run: str | None, *, delete: Sequence[str], limit: int, as_json: bool
) -> int:
    """Delete ``delete`` in order, else list."""
    with connected() as server:
        for path in delete:
            server.delete("/v1/checkpoints", path=path)
            if not as_json:
                print(f"deleted {path}")
        if delete:
            if as_json:
                show_json({"deleted": list(delete)})
            return 0
        found = server.get("/v1/checkpoints", run=run, limit=limit)
    if as_json:
        show_json(found)
    else:
        rows = found["checkpoints"]
        show_rows(COLUMNS, rows, none="no checkpoints", total=found.get("total"))
    return 0
