"""Errors: from what was raised to what a client reads. One shape on all doors.

``{"error": {"message", "type", "code", "param"}}``: the shape that the ``openai`` client shows, and
which the Tinker SDK prints whole. What plait did not raise on purpose is told as such, with a
number under which the log has the rest; its text may hold anything and stays inside.
"""

import logging
import math
import secrets
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from plait.core.errors import Limited, NotFound, PlaitError, Unauthorized
from plait.core.text import writable

log = logging.getLogger("plait.service")

MAX_PLACES = 5
"""Of a body that is wrong all over, so many places are told."""


class ErrorDetail(BaseModel):
    """What went wrong and what to do next."""

    message: str
    type: str
    code: str
    param: str | None = None


class ErrorBody(BaseModel):
    """Body of every answer that is an error."""

    error: ErrorDetail


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For a route's ``responses``: the errors that any route may answer, and these."""
    every = {400, 401, 403, 404, 408, 413, 415, 422, 429, 431, 503, 507, *statuses}
    return {status: {"model": ErrorBody} for status in sorted(every)}


def answer(status: int, message: str, code: str, *, param: str | None = None) -> JSONResponse:
    """An error's response."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    detail = {"message": writable(message), "type": kind, "code": code, "param": param}
    return JSONResponse({"error": detail}, status_code=status)


def told(error: PlaitError) -> JSONResponse:
    """The response to what plait raised on purpose."""
    response = answer(error.http_status, str(error), error.code)
    if isinstance(error, Limited):
        response.headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
        response.headers["retry-after-ms"] = str(max(1, math.ceil(error.retry_after_s * 1000)))
    if isinstance(error, Unauthorized):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def install(app: FastAPI) -> None:
    """Let every error of the app answer in that shape."""

    @app.exception_handler(PlaitError)
    async def _plait(_request: Request, error: PlaitError) -> JSONResponse:
        return told(error)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        found = list(error.errors())
        places = [(_place(one["loc"]), str(one["msg"])) for one in found[:MAX_PLACES]]
        text = "; ".join(f"{place}: {message}" if place else message for place, message in places)
        more = f" (and {len(found) - MAX_PLACES} more)" if len(found) > MAX_PLACES else ""
        malformed = any(one["type"] == "json_invalid" for one in found)
        status = 400 if malformed else 422
        return answer(status, text + more, "request", param=places[0][0] or None)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 404:
            return told(NotFound(f"there is no {request.url.path}"))
        response = answer(error.status_code, str(error.detail), "request")
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def _bug(request: Request, error: Exception) -> JSONResponse:
        number = secrets.token_hex(4)
        log.error("error %s in %s %s", number, request.method, request.url.path, exc_info=error)
        return answer(500, f"internal error {number}: the server's log has the rest", "error")


def _place(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in loc if part != "body")
