"""Auth: who is calling. The key comes from ``X-API-Key`` or ``Authorization: Bearer``.

The middleware looks the key up before a byte of the body is read; a handler asks for its caller by
``who: Caller``. A key in a URL is never looked at: URLs are written into logs.
"""

from collections.abc import Iterable
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPBearer

from plait.core.errors import Forbidden, Unauthorized
from plait.service.ports import Who

STATE = "plait_who"
"""Where the middleware leaves the caller for the handlers."""
MAX_KEY = 512
"""Characters; ours have 47."""

_KEY_HEADER = APIKeyHeader(name="X-API-Key", auto_error=False)
_BEARER = HTTPBearer(auto_error=False)


def key_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The key that a request bears; Unauthorized if it bears none."""
    bearer = ""
    for name, value in headers:
        if name == b"x-api-key" and value:
            return _text(value)
        if name == b"authorization" and not bearer:
            scheme, _, rest = value.partition(b" ")
            bearer = _text(rest.strip()) if scheme.lower() == b"bearer" else ""
    if not bearer:
        raise Unauthorized("no key: send it as X-API-Key, or as Authorization: Bearer")
    return bearer


def _text(value: bytes) -> str:
    if len(value) > MAX_KEY:
        raise Unauthorized("this is no key: it is too long")
    return value.decode("latin-1")


async def caller(
    request: Request,
    _header: Annotated[str | None, Security(_KEY_HEADER)] = None,
    _bearer: Annotated[object, Security(_BEARER)] = None,
) -> Who:
    """The caller that the middleware has found."""
    who = request.scope.get(STATE)
    if not isinstance(who, Who):
        raise Unauthorized("no key: send it as X-API-Key, or as Authorization: Bearer")
    return who


async def admin(who: Annotated[Who, Depends(caller)]) -> Who:
    """The caller, who may manage tenants; Forbidden to others."""
    if not who.admin:
        raise Forbidden("this needs an operator's key")
    return who


Caller = Annotated[Who, Depends(caller)]
Operator = Annotated[Who, Depends(admin)]
