"""Middleware: what stands between the socket and every handler.

In this order, each before the next costs anything: the head of a request has a bounded size; its
key is known; its tenant may send now; its body arrives in bounded size and time, is unpacked and
looked at (``bodies``). A refusal of an unread body closes the connection. Plain ASGI: nothing here
touches the answer, so streams and long polls pass through as they are.
"""

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plait.core.errors import HeadTooLarge, PlaitError, RequestError, SlowBody
from plait.service import auth
from plait.service.access import Access
from plait.service.bodies import PROMPTS, check_json, max_bytes, too_large, unpack
from plait.service.errors import told
from plait.service.heavy import Heavy

MAX_HEAD = 32 * 1024
"""Bytes of a request's line and headers; those of the SDK have about 1 KiB."""
PART_S = 30.0
"""Longest wait for the next part of a body."""
THREAD_BYTES = 2**18
"""Bodies above, and all that are packed, are unpacked and checked off the event loop."""
PUBLIC = frozenset({"/healthz", "/api/v1/healthz", "/openapi.json"})
"""Paths that need no key and take no body."""
SIGNED = "/api/v1/files/"
"""Below it a GET bears its permission in its URL."""
NUMBERED = frozenset(
    f"/api/v1/{name}"
    for name in (
        "forward",
        "forward_backward",
        "optim_step",
        "save_weights",
        "save_weights_for_sampler",
        "save_weights_external",
        "load_weights",
    )
)
"""Their JSON is the door's own to refuse: a refused request must use up its number."""
_BODILESS = ("GET", "HEAD")


class Edge:
    """ASGI: lets a request in, its caller in the scope and its body whole."""

    def __init__(self, app: ASGIApp, access: Access, *, context: Callable[[], int]) -> None:
        """``context``: tokens of the longest prompt that is served."""
        self._app, self._access, self._context = app, access, context
        self._heavy = Heavy()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's scope."""
        if scope["type"] == "lifespan" or _is_public(scope):
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        answering = False

        async def watched(message: Message) -> None:
            nonlocal answering
            answering = True
            await send(message)

        try:
            _check_head(scope)
            who = self._access.caller(auth.key_of(scope["headers"]))
            scope[auth.STATE] = who
            limits = self._access.limits
            with limits.request(who.tenant_id), limits.body(who.tenant_id) as more:
                most = max_bytes(scope["path"], context=self._context())
                body = await self._body(scope, receive, more, most)
                await self._app(scope, _replayed(body, receive), watched)
        except PlaitError as error:
            if answering:
                raise
            response = told(error)
            response.headers["Connection"] = "close"
            await response(scope, receive, send)

    async def _body(
        self, scope: Scope, receive: Receive, more: Callable[[int], None], most: int
    ) -> bytes:
        """The whole body, unpacked and checked. What is packed counts while it is held."""
        packed = await _received(scope, receive, more, most)
        headers = dict(scope["headers"])
        encoding = headers.get(b"content-encoding", b"").strip().lower().decode("latin-1")
        kind = headers.get(b"content-type", b"").lower()
        if not packed and scope["method"] in _BODILESS:
            return packed
        checked = scope["path"] not in NUMBERED and (not kind or b"json" in kind)
        numbers = scope["path"] in PROMPTS
        if encoding or len(packed) > THREAD_BYTES:
            async with self._heavy.turn(scope[auth.STATE].tenant_id):
                body = await asyncio.to_thread(_read, packed, encoding, checked, numbers, most)
        else:
            body = _read(packed, encoding, checked, numbers, most)
        if body is not packed:
            more(len(body))
            drop = (b"content-encoding", b"content-length")
            scope["headers"] = [
                *((name, value) for name, value in scope["headers"] if name not in drop),
                (b"content-length", str(len(body)).encode()),
            ]
        return body


def _is_public(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] not in _BODILESS:
        return False
    path: str = scope["path"]
    return path in PUBLIC or path.startswith(SIGNED)


def _check_head(scope: Scope) -> None:
    size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    size += sum(len(name) + len(value) for name, value in scope["headers"])
    if size > MAX_HEAD:
        raise HeadTooLarge(f"the request's headers have more than {MAX_HEAD} bytes: send fewer")
    if "\0" in scope["path"]:
        raise RequestError("the path has a zero character")


async def _received(
    scope: Scope, receive: Receive, more: Callable[[int], None], most: int
) -> bytes:
    """The whole body as it was sent."""
    headers = dict(scope["headers"])
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared[:20]) > most:
        raise too_large(most)
    parts: list[bytes] = []
    size = 0
    while True:
        try:
            async with asyncio.timeout(PART_S):
                message = await receive()
        except TimeoutError:
            raise SlowBody(f"nothing of the body came for {PART_S:g} s: send it again") from None
        if message["type"] == "http.disconnect":
            raise RequestError("the connection was closed inside the body")
        part = message.get("body", b"")
        if (size := size + len(part)) > most:
            raise too_large(most)
        if part:
            more(len(part))
            parts.append(part)
        if not message.get("more_body", False):
            break
    return b"".join(parts)


def _read(packed: bytes, encoding: str, checked: bool, numbers: bool, most: int) -> bytes:
    body = unpack(packed, encoding, most)
    if body and checked:
        check_json(body, numbers=numbers)
    return body


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body in one message; then what the server says (that the client has gone)."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
