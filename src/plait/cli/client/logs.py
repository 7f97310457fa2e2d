"""Logs: a job's log as it grows. A connection that breaks is taken up after the last line seen."""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from plait.cli.client.server import BACKOFF_S, Server, segment
from plait.cli.client.session import connected
from plait.cli.console import show_json
from plait.core.errors import RemoteError

BROKEN_IN_A_ROW = 20
"""Connections that brought nothing before a follower gives up: ten seconds of a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One server-sent event."""

    id: str
    kind: str
    data: str


def logs_command(job: str, *, follow: bool, as_json: bool) -> int:
    """Print a job's log."""
    with connected() as server:
        return follow_log(server, job, follow=follow, as_json=as_json)


def follow_log(server: Server, job: str, *, follow: bool, as_json: bool) -> int:
    """Print until the log (``follow``: the job) ends; 1 if the job failed."""
    last, broken = "", 0
    while True:
        try:
            headers = {"Last-Event-ID": last} if last else {}
            path = f"/v1/jobs/{segment(job)}/logs"
            with server.stream(path, headers=headers, follow="true" if follow else None) as answer:
                for event in events(answer.iter_lines()):
                    broken = 0
                    last = event.id or last
                    if event.kind == "end":
                        return _ended(event, as_json=as_json, follow=follow)
                    _print(event, as_json=as_json)
            if not follow:
                return 0
        except RemoteError as error:
            if error.http_status < 500 or broken >= BROKEN_IN_A_ROW:
                raise
        broken += 1
        if broken > BROKEN_IN_A_ROW:
            raise RemoteError(f"the log of {job} keeps breaking off: ask again")
        time.sleep(BACKOFF_S)


def events(lines: Iterable[str]) -> Iterator[Event]:
    """Server-sent events (WHATWG HTML, 9.2.6) of a body's lines; one that is cut off is none."""
    id_, kind = "", ""
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                yield Event(id=id_, kind=kind or "message", data="\n".join(data))
            kind, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            kind = value
        elif field == "id":
            id_ = value


def _row(event: Event) -> dict[str, Any]:
    try:
        found = json.loads(event.data)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"text": event.data}


def _print(event: Event, *, as_json: bool) -> None:
    row = _row(event)
    if as_json:
        show_json(row)
    else:
        print(row.get("text", event.data), flush=True)


def _ended(event: Event, *, as_json: bool, follow: bool) -> int:
    row = _row(event)
    if as_json:
        show_json(row)
    elif follow:
        print(f"{row.get('status')}: {row.get('reason')}" if row.get("reason") else row["status"])
    return 1 if row.get("status") == "failed" else 0
