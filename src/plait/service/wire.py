"""Wire: the HTTP protocol of the server, with a bound on what an unfinished head may cost, and on
how many connections there are: over it, those go that have been idle for longest.

uvicorn's parser keeps a request's line and headers however long they grow and however slowly they
come; nobody has shown a key until they are there. Here a head that is far too large, or not there
in time, ends its connection. The exact bound, and an answer that explains it, are the
middleware's.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 2**19
"""Bytes: above the middleware's bound by more than one read from a socket."""
HEAD_S = 30.0
"""Longest from a request's first byte, or a connection's beginning, to the end of its head."""
SOME = 16
"""One in so many is closed when there are too many: looking for them takes a while."""

_ANSWER = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class BoundedHttp(HttpToolsProtocol):
    """For ``uvicorn.Config(http=BoundedHttp)``."""

    most = 1 << 14
    """Connections at once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A head is awaited."""
        super().connection_made(transport)
        self._await_head()
        if len(self.connections) > self.most:
            self._make_room()

    def _make_room(self) -> None:
        """Close some on which nothing has been asked for longest: this one, if it is the only one.
        Whoever is there meanwhile asks again."""
        idle = [(c.idle_since(), c) for c in self.connections if isinstance(c, BoundedHttp)]
        oldest = sorted(((s, id(c), c) for s, c in idle if s is not None), key=lambda one: one[:2])
        for _, _, connection in oldest[: 1 + len(oldest) // SOME]:
            self.connections.discard(connection)
            connection.transport.abort()

    def idle_since(self) -> float | None:
        """Since when, on the loop's clock, no request has been there whole; None if there is one
        that has not been answered."""
        if self._deadline is not None:
            return self._deadline.when() - HEAD_S
        kept = self.timeout_keep_alive_task
        return None if kept is None else kept.when() - self.timeout_keep_alive

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._has_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Part of a head or of a body."""
        super().data_received(data)
        if self._deadline is not None and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self.transport.write(_ANSWER)
                self.transport.close()

    def on_message_begin(self) -> None:
        """A request's first byte."""
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        """A request's head."""
        self._has_head()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._has_head()
        self._deadline = asyncio.get_running_loop().call_later(HEAD_S, self.transport.close)

    def _has_head(self) -> None:
        self._head_bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def bounded(most: int) -> type[BoundedHttp]:
    """The protocol of a server with at most so many connections."""
    return type("BoundedHttp", (BoundedHttp,), {"most": most})
