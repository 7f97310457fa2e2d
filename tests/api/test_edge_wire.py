"""Wire: heads that never end, on a real socket."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from serving import Served, served

from plait.service import wire

SOON_S = 30.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, byte_model: Path) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("wire"), byte_model) as running:
        yield running


def connect(server: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=SOON_S)


def head(server: Served, *lines: str) -> bytes:
    return "\r\n".join(["GET /v1/me HTTP/1.1", "Host: x", *lines, "", ""]).encode()


def answer(connection: socket.socket) -> bytes:
    """Everything that comes until the connection is closed."""
    got = b""
    try:
        while part := connection.recv(65536):
            got += part
    except ConnectionError:
        pass
    return got


def test_a_head_without_end_is_cut(server: Served) -> None:
    with connect(server) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Long: ")
        sent = 0
        try:
            while sent < 4 * wire.MAX_HEAD:
                sent += connection.send(b"a" * 65536)
        except ConnectionError:
            pass
        got = answer(connection)
    assert sent < 4 * wire.MAX_HEAD or got.startswith(b"HTTP/1.1 431"), (sent, got)


def test_a_head_that_is_merely_large_is_told(server: Served) -> None:
    with connect(server) as connection:
        connection.sendall(
            head(server, f"X-API-Key: {server.key}", "X-Long: " + "a" * 40_000, "Connection: close")
        )
        got = answer(connection)
    assert got.startswith(b"HTTP/1.1 431")
    assert b"head_too_large" in got


def test_a_head_that_does_not_come_is_not_awaited(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "HEAD_S", 0.2)
    with connect(server) as connection:
        connection.sendall(b"GET /healthz HT")
        assert answer(connection) == b""


def test_a_kept_connection_serves_many(server: Served) -> None:
    with connect(server) as connection, connection.makefile("rb") as file:
        for _ in range(3):
            connection.sendall(head(server, f"Authorization: Bearer {server.key}"))
            assert file.readline().startswith(b"HTTP/1.1 200")
            n_bytes = 0
            while line := file.readline().strip().lower():
                if line.startswith(b"content-length:"):
                    n_bytes = int(line.partition(b":")[2])
            file.read(n_bytes)


def test_too_many_connections_cost_those_that_ask_for_nothing(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire.BoundedHttp, "most", 20)
    asked = head(server, f"X-API-Key: {server.key}")
    with ExitStack() as opened:
        polling = opened.enter_context(connect(server))
        body = b'{"session_id": "s"}'
        polling.sendall(  # a request that is under way
            b"POST /api/v1/session_heartbeat HTTP/1.1\r\nHost: x\r\nX-API-Key: "
            + f"{server.key}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body[:4]
        )
        idles = []
        for n in range(60):
            idle = opened.enter_context(connect(server))
            idle.sendall(b"GET /healthz HT" if n % 2 else b"GET /healthz HTTP/1.1\r\n\r\n")
            idles.append(idle)
        assert answer(idles[1]) == b"", "the first that goes"
        for _ in range(3):
            one = opened.enter_context(connect(server))
            one.sendall(asked)
            assert one.recv(12) == b"HTTP/1.1 200"
        polling.sendall(body[4:])
        assert polling.recv(9) == b"HTTP/1.1 "
