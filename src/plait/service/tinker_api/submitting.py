"""Submitting: from a body to a request in the line of its model, for all numbered endpoints.

Invariant: a number that a client has used never comes again. So a body that is refused, but says
whose it is, uses up its number; else every later request of that model would wait for it. What can
be read is accepted, and if it is wrong it fails as a request.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict

from plait.core.errors import NotFound, RequestError, RunEnded
from plait.service.bodies import TooManyParts, check_json
from plait.service.errors import responses
from plait.service.ports import House, Who
from plait.service.tinker_api import bodies
from plait.service.tinker_api.bodies import B
from plait.service.typed import THREAD_BYTES
from plait.service.work import Kind

P = ParamSpec("P")
R = TypeVar("R")


class Promise(BaseModel):
    """What a client polls for: the id of its request, and of its model."""

    model_config = ConfigDict(protected_namespaces=())

    request_id: str
    model_id: str


def body_of(kind: type[bodies.Body], *, protobuf: bool = False) -> dict[str, Any]:
    """Arguments of a route that reads the raw body itself: what the API's document says of it."""
    content: dict[str, Any] = {"application/json": {"schema": _schema(kind)}}
    if protobuf:
        content["application/x-protobuf"] = {"schema": {"type": "string", "format": "binary"}}
    document = {"requestBody": {"required": True, "content": content}}
    return {"openapi_extra": document, "responses": responses()}


def _schema(kind: type[bodies.Body]) -> Any:
    """A body's schema in one piece: within the API's document there is no place for its parts."""
    whole = kind.model_json_schema()
    parts = whole.pop("$defs", {})

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(each) for each in value]
        if not isinstance(value, dict):
            return value
        if (name := value.get("$ref", "").removeprefix("#/$defs/")) in parts:
            return filled({**parts[name], **{k: v for k, v in value.items() if k != "$ref"}})
        return {key: filled(each) for key, each in value.items()}

    return filled(whole)


async def numbered(
    house: House, who: Who, request: Request, kind: Kind, model: type[bodies.Numbered]
) -> Promise:
    """Accept a JSON request under its model's number."""
    raw = await request.body()
    body = await read_numbered(house, who, model, raw)
    return await submit(house, who, body.model_id, body.seq_id, kind, raw)


async def read_numbered(house: House, who: Who, kind: type[B], raw: bytes) -> B:
    """A body; if it is refused its number is used up, unless even that is not to be looked for."""
    try:
        return await read(kind, raw)
    except TooManyParts:
        raise
    except RequestError as error:
        await use_up(house, who, await soon(raw, bodies.address, raw), str(error))
        raise


async def read(kind: type[B], raw: bytes) -> B:
    """A body."""
    await soon(raw, check_json, raw)
    return await soon(raw, bodies.read, kind, raw)


async def soon(raw: bytes, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Work on a body: off the event loop, if it is large."""
    if len(raw) <= THREAD_BYTES:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


async def submit(
    house: House, who: Who, model_id: str, seq: int, kind: Kind, raw: bytes
) -> Promise:
    """Put a request in its model's line."""
    session_id = model_id.partition(":train:")[0]
    try:
        request_id = await house.requests.submit(who, session_id, model_id, seq, kind, raw)
    except RunEnded as error:
        # Its own status, 409, would have the client ask again for five minutes.
        raise RequestError(str(error)) from None
    return Promise(request_id=request_id, model_id=model_id)


async def use_up(house: House, who: Who, at: tuple[str, int] | None, reason: str) -> None:
    """Nothing waits for the request of this model and number any more, which was refused."""
    if at is not None:
        with suppress(NotFound):  # no such model: there is no line to hold up
            await house.requests.skip(who, *at, reason)
