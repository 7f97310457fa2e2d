"""Serving: an edge on a real socket, in a thread of this process with a loop of its own."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from edge_support import SOON_S, Edge
from service_support import house

from plait.service.app import create_app
from plait.service.tinker_api.codec import TinkerCodec
from plait.service.wire import BoundedHttp


@dataclass(kw_only=True)
class Served:
    """What is served, and where."""

    url: str
    port: int
    key: str
    """An operator's."""
    edge: Edge
    loop: asyncio.AbstractEventLoop

    def call(self, coroutine: Any) -> Any:
        """Run something on the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(SOON_S)


@contextmanager
def served(directory: Path, model: Path, *, app: dict[str, Any] | None = None) -> Iterator[Served]:
    """A house on the scripted engine, served until the block ends."""
    ready, box = threading.Event(), dict[str, Any]()

    async def run() -> None:
        async with house(directory, model, sampling=None, codec=TinkerCodec()) as opened:
            key = await opened.access.ensure_local_key()
            made = create_app(opened, **(app or {}))
            server = uvicorn.Server(
                uvicorn.Config(
                    made,
                    host="127.0.0.1",
                    port=0,
                    http=BoundedHttp,
                    ws="none",
                    log_config=None,
                    access_log=False,
                    timeout_graceful_shutdown=2,
                )
            )
            server.capture_signals = _no_signals  # type: ignore[method-assign]
            task = asyncio.create_task(server.serve())
            while not server.started:
                if task.done():
                    break
                await asyncio.sleep(0.01)
            port = server.servers[0].sockets[0].getsockname()[1]
            box["served"] = Served(
                url=f"http://127.0.0.1:{port}",
                port=port,
                key=str(key),
                edge=Edge(house=opened, app=made, operator=None),  # type: ignore[arg-type]
                loop=asyncio.get_running_loop(),
            )
            box["server"] = server
            ready.set()
            await task

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:  # told to the test
            box["error"] = error
        finally:
            ready.set()

    thread = threading.Thread(target=main, name="served")
    thread.start()
    assert ready.wait(SOON_S)
    if "error" in box:
        raise box["error"]
    try:
        yield box["served"]
    finally:
        box["server"].should_exit = True
        thread.join(SOON_S)
        assert not thread.is_alive()
    if "error" in box:
        raise box["error"]


@contextmanager
def _no_signals() -> Iterator[None]:
    yield
