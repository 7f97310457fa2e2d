"""Wire: heads that never end, on a real socket."""

import socket
from collections.abc import Iterator
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
