"""Serve: one process that is the whole service: the house, the app, uvicorn on one loop.

The address is taken before anything is opened, so that a restart answers from its first second on
(what comes early waits in the socket), and one that is in use is found first. Beyond loopback
nothing is served until there are keys. The first SIGTERM or SIGINT stops in order: no new
connections, open answers get ``GRACE_S``, the workers stop, what is under way goes on in the next
life; the second ends at once, which is as safe as ``kill -9``.
"""

import asyncio
import contextlib
import gc
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from plait.core.errors import ConfigError
from plait.policies.registry import DEFAULT
from plait.runtime.settings import Settings
from plait.service import descriptors, redaction
from plait.service.app import create_app
from plait.service.house import House
from plait.service.ports import ModelOffer
from plait.service.tinker_api.codec import TinkerCodec
from plait.service.wire import bounded

GRACE_S = 2.0
"""For answers under way when the service stops: long polls end no sooner, and are asked again."""
GC_THRESHOLDS = (50_000, 20, 50)
"""A full collection after 50 million objects more than before: it looks at every parked request,
which takes a fifth of a second where there are 10,000. What is in no cycle needs none."""
KEEP_ALIVE_S = 75
"""Longer than clients leave a connection unused between two polls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be served, and where."""

    directory: Path
    models: Sequence[str]
    bind: str = "127.0.0.1:8787"
    database: str | None = None
    settings: Settings = field(default_factory=Settings)
    policy: str = DEFAULT
    allow_code: bool = False


class _Server(uvicorn.Server):
    """uvicorn without signal handlers of its own: it would end the process before the house."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """asyncio lets as many wait in the kernel as it takes up in one go; more may."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(descriptors.BACKLOG)


def calm_collector() -> None:
    """Collect garbage seldom, and never look at what was there from the start: a full collection
    over thousands of parked requests holds every answer up for a fifth of a second."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def serve(plan: Plan) -> None:
    """Serve until a signal; ConfigError or StoreError if that cannot be begun."""
    host, port = _address(plan.bind)
    shares = descriptors.share_out()
    with contextlib.closing(_listen(host, port)) as listening:
        house = House(
            plan.directory,
            models=plan.models,
            codec=TinkerCodec(),
            settings=plan.settings,
            policy=plan.policy,
            database=plan.database,
        )
        async with house:
            if not _is_loopback(host) and not house.access.has_keys:
                raise ConfigError(
                    f"{plan.bind} can be reached from outside and there are no keys: serve on "
                    "127.0.0.1 first and make keys with `plait keys`"
                )
            key = await house.access.ensure_local_key()
            calm_collector()
            server = _Server(_config(house, plan, shares))
            with _stopping(server):
                _tell(house.offers(), listening, key)
                await server.serve(sockets=[listening])


def _config(house: House, plan: Plan, shares: descriptors.Shares) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(house, allow_code=plan.allow_code),
        http=bounded(shares.connections),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=shares.at_once,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(GRACE_S),
    )


def _tell(offers: Sequence[ModelOffer], listening: socket.socket, key: str | None) -> None:
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"serving {', '.join(o.name for o in offers)} on http://{shown}:{port}", flush=True)
    if key is not None:
        print(f"key (shown once): {key}", flush=True)


@contextlib.contextmanager
def _stopping(server: uvicorn.Server) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def first() -> None:
        server.should_exit = True
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in numbers:
        loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _address(bind: str) -> tuple[str, int]:
    host, _, port = bind.rpartition(":")
    if host and port.isdecimal() and int(port) < 1 << 16:
        return host.strip("[]"), int(port)
    raise ConfigError(f"--bind {bind}: give HOST:PORT, such as 127.0.0.1:8787; port 0 is any")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen(descriptors.BACKLOG)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        why = error.strerror or os.strerror(error.errno or 0)
        raise ConfigError(
            f"cannot serve on {host}:{port} ({why}): choose another --bind"
        ) from error
    return listening


def run(plan: Plan) -> int:
    """Serve until a signal; the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    redaction.install()
    asyncio.run(serve(plan))
    return 0
