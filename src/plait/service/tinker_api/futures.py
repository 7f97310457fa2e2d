"""Futures: long polls for what became of requests.

An answer comes within ``HOLD_S``: the result, its failure (status 200: the client must not ask
again), or ``try_again`` with the queue's state and why, whereupon the client asks again at once.
"""

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from plait.service.auth import Caller
from plait.service.errors import responses
from plait.service.ports import Failed, House, Ready, Waiting
from plait.service.tinker_api import bodies
from plait.service.tinker_api.codec import AS_JSON, PROTOBUF
from plait.service.tinker_api.training import PROTOBUF as PROTOBUF_TYPE

HOLD_S = 30.0
"""How long a poll is held. The client gives up after 45 s and then waits up to 30 s itself."""
INLINE_BYTES = 1 << 20
"""Answers above are announced first to clients that ask for it: they reserve room for them."""
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {}, PROTOBUF_TYPE: {}}, "description": "An outcome"}
}


def routes(house: House, route: type[APIRoute]) -> APIRouter:
    """The endpoints, over a house; ``route`` reads what may be large."""
    router = APIRouter(route_class=route)

    @router.post(
        "/retrieve_future",
        response_class=Response,
        responses={**responses(410), **_ANSWERS},
    )
    async def retrieve_future(
        body: bodies.Future,
        request: Request,
        who: Caller,
    ) -> Response:
        """What became of a request."""
        outcome = await house.requests.outcome(who, body.request_id, wait_s=HOLD_S)
        match outcome:
            case Waiting():
                return JSONResponse(
                    {
                        "type": "try_again",
                        "request_id": body.request_id,
                        "queue_state": outcome.state,
                        "queue_state_reason": outcome.reason or None,
                    }
                )
            case Failed():
                return JSONResponse({"error": outcome.error, "category": outcome.category})
            case Ready():
                if body.allow_metadata_only and len(outcome.body) > INLINE_BYTES:
                    size = len(outcome.body)
                    told = {"status": "complete_metadata", "response_payload_size": size}
                    return JSONResponse(told)
                return _answer(outcome, request.headers.get("accept", ""))

    @router.post("/retrieve_futures", responses=responses())
    async def retrieve_futures(body: bodies.Futures, who: Caller) -> dict[str, Any]:
        """Which samples of a sampler have ended since the cursor."""
        await house.requests.forget(who, body.retrieved_request_ids)
        wait_s = HOLD_S if body.timeout is None else max(0.0, min(body.timeout, HOLD_S))
        ended, cursor = await house.requests.ended(
            who,
            body.target.sampling_session_id,
            body.target.cloned_sampler_id,
            body.prev_cursor,
            wait_s=wait_s,
        )
        completions: list[dict[str, Any]] = []
        for one in ended:
            told: dict[str, Any] = {"request_id": one.request_id, "state": "failed"}
            if not one.failed:
                size = {"response_payload_uncompressed_size": one.n_bytes}
                told |= {"state": "finished", **size}
            completions.append(told)
        return {"completions": completions, "cursor": cursor}

    @router.post("/cancel_future", status_code=204, responses=responses())
    async def cancel_future(body: bodies.Future, who: Caller) -> None:
        """Stop a sample that nobody waits for any more."""
        await house.requests.cancel(who, body.request_id)

    return router


def _answer(ready: Ready, accept: str) -> Response:
    """The stored answer, as protobuf unless the client does not read it."""
    if ready.kind not in PROTOBUF:
        return Response(ready.body, media_type="application/json")
    if PROTOBUF_TYPE in accept:
        return Response(ready.body, media_type=PROTOBUF_TYPE)
    return JSONResponse(AS_JSON[ready.kind](ready.body))
