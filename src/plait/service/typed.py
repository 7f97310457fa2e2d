"""Typed: large JSON bodies become what a route takes in a thread, few at a time (``heavy``).

FastAPI parses and validates on the event loop. A route of this class finds a body of more than
``THREAD_BYTES`` made already, and wrong ones refused in the same words; smaller ones are FastAPI's.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from plait.core.errors import RequestError
from plait.service import auth
from plait.service.heavy import Heavy
from plait.service.ports import Who

THREAD_BYTES = 2**16
"""What is smaller takes the loop a few milliseconds at the worst."""
MAX_TOLD = 1000
"""Mistakes of one body that are looked at: to tell of a hundred thousand takes a second."""


class _Made(Request):
    """A request whose body has been made."""

    def __init__(self, request: Request, raw: bytes, made: BaseModel) -> None:
        super().__init__(request.scope, request.receive)
        self._raw, self._made = raw, made

    async def body(self) -> bytes:
        return self._raw

    async def json(self) -> Any:
        return self._made


def typed(heavy: Heavy) -> type[APIRoute]:
    """The routes of one app, which take turns at large bodies."""

    class Typed(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()
            kind = None if self.body_field is None else self.body_field.field_info.annotation
            if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
                return handle

            async def answer(request: Request) -> Response:
                raw, who = await request.body(), request.scope.get(auth.STATE)
                if len(raw) <= THREAD_BYTES or not _is_json(request) or not isinstance(who, Who):
                    return await handle(request)
                async with heavy.turn(who.tenant_id):
                    made = await asyncio.to_thread(_make, kind, raw)
                return await handle(_Made(request, raw, made))

            return answer

    return Typed


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind.startswith("application/") and kind.endswith(("/json", "+json"))


def _make(kind: type[BaseModel], raw: bytes) -> BaseModel:
    try:
        return kind.model_validate(from_json(raw), from_attributes=True)  # as FastAPI does
    except ValidationError as error:
        if (n := error.error_count()) > MAX_TOLD:
            raise RequestError(f"the body is wrong in {n} places: see /openapi.json") from None
        told = error.errors(include_url=False, include_input=False)
        found = [{**one, "loc": ("body", *one["loc"])} for one in told]
    except ValueError as error:
        found = [{"type": "json_invalid", "loc": ("body",), "msg": f"no JSON: {error}"}]
    raise RequestValidationError(found)
