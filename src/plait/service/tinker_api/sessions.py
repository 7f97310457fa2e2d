"""Sessions: a client's session from its beginning to its end, and the search for old ones."""

import logging
from datetime import datetime
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute

from plait.core.errors import RequestError
from plait.service.auth import Caller
from plait.service.errors import responses
from plait.service.ports import House, SessionInfo
from plait.service.tinker_api import bodies, told

log = logging.getLogger(__name__)

MAX_SEARCHED = 10_000
"""Sessions, the newest first, that a search looks through."""


def routes(house: House, route: type[APIRoute]) -> APIRouter:
    """The endpoints, over a house; ``route`` reads what may be large."""
    router = APIRouter(route_class=route)

    @router.post("/create_session", responses=responses())
    async def create_session(body: bodies.CreateSession, who: Caller) -> dict[str, Any]:
        """A session: what the client makes from here on lives as long as it does."""
        session_id = await house.clients.open_session(who, body.model_dump(exclude_none=True))
        return {"type": "create_session", "session_id": session_id}

    @router.post("/session_heartbeat", responses=responses(410))
    async def session_heartbeat(body: bodies.Session, who: Caller) -> dict[str, str]:
        """The client lives."""
        await house.clients.heartbeat(who, body.session_id)
        return {"type": "session_heartbeat"}

    @router.get("/sessions", responses=responses())
    async def list_sessions(
        who: Caller, limit: told.Limit = 20, offset: told.Offset = 0
    ) -> dict[str, Any]:
        """The caller's sessions, the newest first."""
        page = await house.clients.sessions(who, limit=limit, offset=offset)
        return {"sessions": [session.session_id for session in page.items]}

    @router.post("/sessions/search", responses=responses())
    async def search_sessions(body: bodies.SearchSessions, who: Caller) -> dict[str, Any]:
        """The caller's sessions that match, the newest first."""
        page = await house.clients.sessions(who, limit=MAX_SEARCHED, offset=0)
        found = [session for session in page.items if _matches(session, body)]
        shown, more = found[: body.limit], len(found) > body.limit
        cursor = None
        if more:
            created = told.time(shown[-1].created_at)
            cursor = {"last_created_at": created, "last_session_id": shown[-1].session_id}
        sessions = [_summary(who.tenant_id, session) for session in shown]
        return {"sessions": sessions, "next_cursor": cursor}

    @router.get("/sessions/{session_id}", responses=responses())
    async def get_session(session_id: str, who: Caller) -> dict[str, Any]:
        """One session: its models and samplers."""
        session = await house.clients.session(who, session_id)
        return {
            "training_run_ids": list(session.model_ids),
            "sampler_ids": list(session.sampler_ids),
            "user_metadata": told.labels(session.user_metadata),
            "display_name": session.display_name or None,
        }

    @router.post("/sessions/{session_id}/finish", status_code=204, responses=responses())
    async def finish(
        session_id: str,
        body: bodies.FinishSession,
        who: Caller,
    ) -> None:
        """The client is done: what it held is free, what it still asks for is refused."""
        await house.clients.finish(who, session_id, body.reason.type, body.detail or "")

    @router.put("/sessions/{session_id}/project", responses=responses())
    async def assign_project(session_id: str, who: Caller) -> None:
        """Refused: a tenant's sessions are one project here."""
        await house.clients.session(who, session_id)
        raise RequestError("there are no projects on this server: use one key for each")

    @router.get("/sessions/{session_id}/trace_export", responses=responses())
    async def trace_export(session_id: str, who: Caller) -> dict[str, Any]:
        """Not offered; the client shows why."""
        await house.clients.session(who, session_id)
        return {"status": "failed", "error": "this server exports no traces: see plait why RUN"}

    @router.post("/telemetry", responses=responses())
    async def telemetry(body: bodies.Telemetry, who: Caller) -> dict[str, str]:
        """Taken note of: names of events only, for their data may hold keys."""
        names = [str(event.get("event_name") or event.get("event"))[:80] for event in body.events]
        log.debug("client events of %s: %s", who.tenant_id, names)
        return {"status": "accepted"}

    return router


def _matches(session: SessionInfo, body: bodies.SearchSessions) -> bool:
    if body.cursor is not None:
        # Times are compared as they were told, which is how the cursor has them.
        last = (body.cursor.last_created_at, body.cursor.last_session_id)
        if (datetime.fromisoformat(told.time(session.created_at)), session.session_id) >= last:
            return False
    wanted = [word.lower() for word in (body.display_name or "").split()]
    named = bool(wanted) and all(word in session.display_name.lower() for word in wanted)
    if (wanted or body.session_id) and not (named or session.session_id == body.session_id):
        return False
    had = told.labels(session.user_metadata) or {}
    if any(had.get(key) != value for key, value in body.user_metadata.items()):
        return False
    return body.statuses is None or any(_is(session, status) for status in body.statuses)


def _is(session: SessionInfo, status: bodies.SessionStatus) -> bool:
    if status.type == "active":
        return not session.ended
    if status.type != "client_finished":
        return False
    return bool(session.ended) and (status.reasons is None or session.ended in status.reasons)


def _summary(owner: str, session: SessionInfo) -> dict[str, Any]:
    status: dict[str, Any] | None = {"type": "active"}
    if session.ended in bodies.FINISHED:
        status = {"type": "client_finished", "reason": {"type": session.ended}}
    elif session.ended:
        status = None
    return {
        "session_id": session.session_id,
        "created_at": told.time(session.created_at),
        "owner": owner,
        "project_id": session.project_id,
        "status": status,
        "checkpoints_count": session.n_checkpoints,
        "display_name": session.display_name or None,
        "user_metadata": told.labels(session.user_metadata),
    }
