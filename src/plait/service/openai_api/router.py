"""Router: the endpoints of the OpenAI API. What is wrong with a body is a 400 that names the field,
as OpenAI's clients expect it; a client that goes away takes its samples with it.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from sse_starlette import EventSourceResponse, ServerSentEvent

from plait.core.errors import NotFound, RequestError
from plait.service import errors
from plait.service.auth import Caller
from plait.service.heavy import Heavy
from plait.service.openai_api import asked as asking
from plait.service.openai_api import replies, stream
from plait.service.openai_api.asked import Asked
from plait.service.openai_api.catalog import Catalog, Served
from plait.service.openai_api.schema import UNSERVED, ChatRequest, CompletionRequest
from plait.service.ports import House, Who
from plait.service.typed import typed

T = TypeVar("T")
MAX_SEED = 2**31
"""Of those that are drawn for who gives none."""
GONE = 499
"""Told to nobody: the client is gone."""
PING_S = 15
"""A comment so often keeps proxies from closing a stream that waits for its turn."""


def refusing(route: type[APIRoute]) -> type[APIRoute]:
    """Bodies that are refused answer 400, with the reason where the type alone does not say it."""

    class Route(route):  # type: ignore[misc, valid-type]
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def answer(request: Request) -> Response:
                try:
                    return await handle(request)  # type: ignore[no-any-return]
                except RequestValidationError as error:
                    return _refusal(error)

            return answer

    return Route


def router(house: House) -> APIRouter:
    """The door's routes."""
    route = refusing(typed(Heavy()))
    routes = APIRouter(prefix="/v1", tags=["openai"], route_class=route)
    catalog = Catalog(house)

    async def find(who: Who, model: str) -> Served | JSONResponse:
        try:
            return await catalog.find(who, model)
        except (NotFound, RequestError) as error:  # the latter: a path of no known form
            return errors.answer(404, str(error), "model_not_found", param="model")

    @routes.post("/chat/completions", responses=errors.responses(), response_class=JSONResponse)
    async def chat_completions(body: ChatRequest, who: Caller, request: Request) -> Response:
        """Answers to a conversation."""
        if isinstance(served := await find(who, body.model), JSONResponse):
            return served
        lane = await house.lane(served.offer.name)
        tokenizer = await catalog.tokenizer(served.offer)
        asked = await asking.chat(body, served, lane, tokenizer, secrets.randbelow(MAX_SEED))
        head = _head("chatcmpl", body.model, served)
        options = {"logprobs": bool(body.logprobs), "ids": body.return_token_ids}
        if not body.stream:
            if (results := await _unless_gone(request, asked.draw())) is None:
                return Response(status_code=GONE)
            return JSONResponse(replies.chat_reply(asked, results, **options, head=head))
        return _stream(
            asked,
            stream.chat_choice(asked, **options),
            head={**head, "object": "chat.completion.chunk"},
            opening={"delta": {"role": "assistant", "content": ""}, "finish_reason": None},
            with_usage=body.stream_options is not None and body.stream_options.include_usage,
        )

    @routes.post("/completions", responses=errors.responses(), response_class=JSONResponse)
    async def completions(body: CompletionRequest, who: Caller, request: Request) -> Response:
        """Continuations of texts."""
        if isinstance(served := await find(who, body.model), JSONResponse):
            return served
        lane = await house.lane(served.offer.name)
        tokenizer = await catalog.tokenizer(served.offer)
        asked = await asking.completion(body, served, lane, tokenizer, secrets.randbelow(MAX_SEED))
        head = _head("cmpl", body.model, served)
        options = {"logprobs": body.logprobs is not None, "ids": body.return_token_ids}
        if not body.stream:
            if (results := await _unless_gone(request, asked.draw())) is None:
                return Response(status_code=GONE)
            reply = replies.text_reply(
                asked,
                results,
                **options,
                echo=bool(body.echo),
                drawn=body.max_tokens != 0,
                head=head,
            )
            return JSONResponse(reply)
        return _stream(
            asked,
            stream.text_choice(asked, **options),
            head={**head, "object": "text_completion"},
            opening=None,
            with_usage=body.stream_options is not None and body.stream_options.include_usage,
        )

    @routes.get("/models", responses=errors.responses())
    async def models(who: Caller) -> dict[str, Any]:
        """The names that can be sampled."""
        found = await catalog.listed(who)
        return {"object": "list", "data": [_model(name, since) for name, since in found]}

    @routes.get("/models/{name:path}", responses=errors.responses())
    async def model(name: Annotated[str, Path(max_length=512)], who: Caller) -> Response:
        """One name, if it can be sampled."""
        if isinstance(served := await find(who, name), JSONResponse):
            return served
        return JSONResponse(_model(name, 0.0))

    return routes


def _model(name: str, since: float) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": int(since), "owned_by": "plait"}


def _head(kind: str, model: str, served: Served) -> dict[str, Any]:
    return {
        "id": f"{kind}-{secrets.token_hex(12)}",
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": served.fingerprint,
    }


def _stream(asked: Asked, tell: stream.Choice, **options: Any) -> Response:
    async def told() -> AsyncIterator[ServerSentEvent]:
        async with aclosing(stream.events(asked, tell, **options)) as lines:
            async for line in lines:
                yield ServerSentEvent(data=line)

    return EventSourceResponse(told(), ping=PING_S, sep="\n")


def _refusal(error: RequestValidationError) -> JSONResponse:
    found = error.errors()
    # Of a field that takes several shapes, what is wrong with the one that was meant.
    first = next((one for one in found if not one["type"].endswith("_type")), found[0])
    named = (str(part) for part in first["loc"] if part != "body")
    place = [part for part in named if part.isidentifier() or part.isdecimal()]
    param = place[0] if place else None
    why = next((UNSERVED[p] for p in place if p in UNSERVED), None)
    if first["type"] == "extra_forbidden":
        why = f"{'.'.join(place)} is not known here: leave it out"
    text = why or (f"{'.'.join(place)}: {first['msg']}" if place else str(first["msg"]))
    return errors.answer(400, text, "invalid_value", param=param)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The result; None if the client went first, and the work is given up."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
