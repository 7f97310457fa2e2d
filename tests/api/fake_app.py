"""The Tinker API over a fake house: an app for tests, and a program that serves it.

``python tests/api/fake_app.py DIRECTORY MODEL_DIR`` prints its URL. Keys are ``tml-TENANT``.
"""

import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from fake_house import FakeHouse
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from plait.core.ids import TenantId
from plait.service import auth, errors, tinker_api
from plait.service.bodies import unpack
from plait.service.ports import Who


class Keys:
    """What of the real middleware this door relies on: the caller, and bodies unpacked."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            if b"x-api-key" in headers:
                tenant = headers[b"x-api-key"].decode().removeprefix("tml-")
                scope[auth.STATE] = Who(tenant_id=TenantId(tenant))
            if encoding := headers.get(b"content-encoding"):
                body, more = b"", True
                while more:
                    message = await receive()
                    body, more = body + message["body"], message.get("more_body", False)
                whole = unpack(body, encoding.decode(), 1 << 26)

                async def unpacked() -> Any:
                    return {"type": "http.request", "body": whole}

                await self.app(scope, unpacked, send)
                return
        await self.app(scope, receive, send)


def make_app(house: FakeHouse, **how: Any) -> Keys:
    app = FastAPI()
    errors.install(app)
    app.include_router(tinker_api.router(house, **how))  # type: ignore[arg-type]
    return Keys(app)


if __name__ == "__main__":
    house = FakeHouse(Path(sys.argv[1]), Path(sys.argv[2]))
    listener = socket.create_server(("127.0.0.1", int(sys.argv[3]) if len(sys.argv) > 3 else 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(make_app(house), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])
