"""``plait checkpoints``: list them, or pin, unpin, delete some."""

from collections.abc import Callable, Sequence
from urllib.parse import urlencode

from plait.cli.client.session import connected
from plait.cli.client.show import show_rows
from plait.cli.console import show_json

PIN = "/v1/checkpoints/pin"
COLUMNS = {
    "path": "path",
    "kind": "kind",
    "size": "size_bytes",
    "created": "created_at",
    "expires": "expires_at",
    "public": "public",
    "pinned": "pinned",
}


def checkpoints_command(
    run: str | None,
    *,
    pin: Sequence[str] = (),
    unpin: Sequence[str] = (),
    delete: Sequence[str],
    limit: int,
    as_json: bool,
) -> int:
    """Pin, unpin and delete what is given, in this order, else list."""
    with connected() as server:
        calls: dict[str, tuple[Sequence[str], Callable[[str], object]]] = {
            "pinned": (pin, lambda path: server.post(f"{PIN}?{urlencode({'path': path})}")),
            "unpinned": (unpin, lambda path: server.delete(PIN, path=path)),
            "deleted": (delete, lambda path: server.delete("/v1/checkpoints", path=path)),
        }
        done = {what: list(paths) for what, (paths, _) in calls.items() if paths}
        for what, paths in done.items():
            for path in paths:
                calls[what][1](path)
                if not as_json:
                    print(f"{what} {path}")
        if done:
            if as_json:
                show_json(done)
            return 0
        found = server.get("/v1/checkpoints", run=run, limit=limit)
    if as_json:
        show_json(found)
    else:
        rows = found["checkpoints"]
        show_rows(COLUMNS, rows, none="no checkpoints", total=found.get("total"))
    return 0
