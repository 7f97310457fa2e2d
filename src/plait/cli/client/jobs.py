"""Jobs: ``submit``, ``jobs``, ``why``, and what changes one."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plait.cli.client.logs import follow_log
from plait.cli.client.server import segment
from plait.cli.client.session import connected
from plait.cli.client.show import said, show_facts, show_rows
from plait.cli.console import show_json
from plait.core.errors import ConfigError

COLUMNS = {
    "job": "job_id",
    "name": "name",
    "model": "model",
    "status": "status",
    "step": "progress",
    "reward": "reward",
    "why": "reason",
}


def submit_command(
    files: Sequence[Path], *, data: Sequence[Path], follow: bool, as_json: bool, nonce: str
) -> int:
    """Hand in all files; none of a file's jobs is taken if one of them is wrong. ``nonce`` is of
    this call: a request that is sent twice makes its jobs once."""
    texts = [_read(file) for file in files]
    sent = {file.name: _read(file) for file in data}
    if len(sent) < len(data):
        raise ConfigError("two data files have the same name: give each a name of its own")
    made: list[dict[str, Any]] = []
    with connected() as server:
        for number, text in enumerate(texts):
            once = hashlib.sha256(f"{nonce}:{number}:{text}".encode()).hexdigest()
            body = {"file": text, "files": sent} if sent else {"file": text}
            made += server.post("/v1/jobs", body, idempotency=once)["jobs"]
        if as_json:
            show_json({"jobs": made})
        else:
            for job in made:
                print(f"{job['name']}: {job['job_id']} ({job['status']})")
        if follow and made:
            return follow_log(server, made[0]["job_id"], follow=True, as_json=as_json)
    return 0


def jobs_command(job: str | None, *, status: str | None, limit: int, as_json: bool) -> int:
    """List jobs, or show one."""
    with connected() as server:
        if job is not None:
            found = server.get(f"/v1/jobs/{segment(job)}")
        else:
            found = server.get("/v1/jobs", status=status, limit=limit)
    if as_json:
        show_json(found)
    elif job is not None:
        show_facts([(key, said(key, value)) for key, value in found.items()])
    else:
        rows = [{**row, "progress": _progress(row)} for row in found["jobs"]]
        none = "no jobs: hand some in with plait submit FILE"
        show_rows(COLUMNS, rows, none=none, total=found.get("total"))
    return 0


def why_command(run: str, *, as_json: bool) -> int:
    """Say what a run waits for."""
    with connected() as server:
        found = server.get(f"/v1/runs/{segment(run)}/why")
    if as_json:
        show_json(found)
        return 0
    waiting = found.get("waiting_for")
    state = f"{found.get('stage')}, waiting for {waiting}" if waiting else str(found.get("stage"))
    print(f"{found.get('run_id', run)}: {state}")
    facts = [
        (name, said(key, found[key]))
        for name, key in (
            ("reason", "reason"),
            ("position", "position"),
            ("waiting since, s", "since_s"),
            ("expected wait, s", "expected_s"),
        )
        if found.get(key) not in (None, "")
    ]
    show_facts(facts)
    return 0


def change_command(job: str, change: str, *, as_json: bool) -> int:
    """``cancel``, ``pause`` or ``resume`` a job; done twice, the same."""
    with connected() as server:
        found = server.post(f"/v1/jobs/{segment(job)}/{change}", idempotency=f"{change}:{job}")
    if as_json:
        show_json(found)
    else:
        print(f"{found['name']}: {found['status']}")
    return 0


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"cannot read {file} ({why}): is it there?") from error


def _progress(row: dict[str, Any]) -> str:
    of = f"/{row['steps']}" if row.get("steps") else ""
    return f"{row.get('step') or 0}{of}"
