"""Wire: the HTTP protocol of the server, with a bound on what an unfinished head may cost.

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

_ANSWER = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class BoundedHttp(HttpToolsProtocol):
    """For ``uvicorn.Config(http=BoundedHttp)``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A head is awaited."""
        super().connection_made(transport)
        self._await_head()

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
