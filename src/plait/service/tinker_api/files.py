"""Files: checkpoints to be downloaded, by URLs that are signed and end.

Whoever has such a URL needs no key (the client's downloader sends none), so it names the tenant,
the checkpoint and the file, says until when, and is signed with a secret of this server's life.
Which files are sent is ``archive``'s.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256
from json import dumps, loads
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, RedirectResponse, Response

from plait.core.errors import NotFound
from plait.core.ids import TenantId
from plait.service import archive as archives
from plait.service import paths
from plait.service.auth import Caller
from plait.service.errors import responses
from plait.service.ports import House, Who
from plait.service.tinker_api import told
from plait.service.tinker_api.runs import CHECKPOINT

VALID_S = 3600.0
"""How long a URL is good for: a download is begun within an hour."""
PREFIX = "/files/"
"""Paths below need no key."""


def routes(house: House, secret: bytes, wall: Callable[[], float]) -> APIRouter:
    """The endpoints, over a house; ``wall`` is seconds since the epoch."""
    router = APIRouter()
    seal = _Seal(secret)

    def url(request: Request, who: Who, path: str, name: str, until: float) -> str:
        token = seal.write([who.tenant_id, path, name, until])
        return f"{str(request.base_url).rstrip('/')}/api/v1{PREFIX}{token}"

    @router.get(CHECKPOINT + "/external_weights_urls", responses=responses())
    async def external_weights_urls(
        model_id: str, section: str, name: str, request: Request, who: Caller
    ) -> dict[str, Any]:
        """A URL for each file of a checkpoint."""
        path = str(paths.of(model_id, f"{section}/{name}"))
        folder, until = await house.models.files(who, path), wall() + VALID_S
        urls = {file: url(request, who, path, file, until) for file in archives.files(folder)}
        return {"urls": urls, "expires": told.time(until)}

    @router.get(
        CHECKPOINT + "/archive",
        status_code=302,
        response_class=RedirectResponse,
        responses=responses(),
    )
    async def archive(
        model_id: str, section: str, name: str, request: Request, who: Caller
    ) -> Response:
        """A redirection to the checkpoint as a tar archive."""
        path = str(paths.of(model_id, f"{section}/{name}"))
        await house.models.files(who, path)
        return RedirectResponse(url(request, who, path, "", wall() + VALID_S), status_code=302)

    @router.get(PREFIX + "{token}", response_class=Response, responses=responses())
    async def download(token: str) -> Response:
        """What a signed URL is of."""
        tenant_id, path, name, until = seal.read(token)
        if until < wall():
            raise NotFound("this URL has expired: ask for a new one")
        folder = await house.models.files(Who(tenant_id=TenantId(tenant_id)), path)
        if not name:
            return archives.response(folder, path.rpartition("/")[2])
        if name not in archives.files(folder):
            raise NotFound(f"the checkpoint has no file {name[:200]!r}")
        return FileResponse(folder / name, media_type="application/octet-stream")

    return router


class _Seal:
    """Values in a URL that nobody else can write."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def write(self, values: list[Any]) -> str:
        """The token of some values."""
        body = dumps(values).encode()
        return urlsafe_b64encode(self._sign(body) + body).decode().rstrip("=")

    def read(self, token: str) -> list[Any]:
        """Its values; NotFound if it is not ours."""
        try:
            raw = urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except ValueError:
            raw = b""
        size = sha256().digest_size
        if not hmac.compare_digest(raw[:size], self._sign(raw[size:])):
            raise NotFound("there is no such download: ask for its URL again")
        values: list[Any] = loads(raw[size:])
        return values

    def _sign(self, body: bytes) -> bytes:
        return hmac.digest(self._secret, body, "sha256")
