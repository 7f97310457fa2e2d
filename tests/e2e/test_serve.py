"""``plait serve`` as a process: its one key, its end, its restart, where it may listen."""

import resource
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest
from served import COMMAND, GONE_S, Served
from tinker_client import TinkerClient

pytestmark = pytest.mark.e2e

SCRIPTED = ("--engine", "scripted")
N_KNOWN = 50
RESTART_S = 10.0
"""Figure D8, on an idle machine."""


def _refused(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [*COMMAND, "--dir", str(directory), *SCRIPTED, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    return line


def test_one_key_is_told_once_and_sigterm_ends_it_in_order(
    tmp_path: Path, byte_model: Path
) -> None:
    with Served(tmp_path / "s", "--model", str(byte_model), *SCRIPTED) as served:
        client = TinkerClient(served.url, served.key)
        client.open(str(byte_model), rank=4, seed=0)
        client.result(client.gradient(1, seq=client.number()))
        workers = served.workers()
        assert workers
        assert served.terminate() == 0
        psutil.wait_procs(workers, timeout=GONE_S)
        assert not any(worker.is_running() for worker in workers)
        served.start()
        served.until_up()
        assert served.log.read_text().count("tml-") == 1
        assert client.result(client.step())["metrics"]["grad_norm:mean"] > 0
        client.finish()
        client.close()
        assert httpx.get(f"{served.url}/api/v1/healthz").status_code in (200, 401)


def test_it_is_particular_about_where_it_listens(tmp_path: Path, byte_model: Path) -> None:
    model = ("--model", str(byte_model))
    assert "no keys" in _refused(tmp_path / "s", *model, "--bind", "0.0.0.0:0")
    assert "HOST:PORT" in _refused(tmp_path / "s", *model, "--bind", "8080")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        assert "choose another --bind" in _refused(tmp_path / "s", *model, "--bind", bind)
    with Served(tmp_path / "s", *model, *SCRIPTED):
        assert "in use by process" in _refused(tmp_path / "s", *model, "--bind", "127.0.0.1:0")


@pytest.mark.slow
def test_a_restart_with_many_runs_known(tmp_path: Path, byte_model: Path) -> None:
    with Served(tmp_path / "s", "--model", str(byte_model), *SCRIPTED) as served:
        clients = []
        for seed in range(N_KNOWN):
            client = TinkerClient(served.url, served.key)
            client.open(str(byte_model), rank=4, seed=seed)
            client.gradient(seed, seq=client.number())
            client.result(client.step())
            clients.append(client)
        served.kill(everything=True)
        began = time.monotonic()
        served.start()
        served.until_up()
        assert client.result(client.step())["metrics"] is not None
        took_s = time.monotonic() - began
        print(f"serving {N_KNOWN} known runs again after {took_s:.1f} s")
        assert took_s <= RESTART_S
        for client in clients[::10]:
            assert client.result(client.step())["metrics"] is not None
        for client in clients:
            client.close()


def test_connections_leave_descriptors_for_everything_else(
    tmp_path: Path, byte_model: Path
) -> None:
    served = Served(tmp_path / "s", "--model", str(byte_model), *SCRIPTED)
    served.start()
    resource.prlimit(served.pid, resource.RLIMIT_NOFILE, (200, 256))
    with ExitStack() as opened:
        opened.callback(served.kill, everything=True)
        served.until_up()
        where = ("127.0.0.1", int(served.url.rpartition(":")[2]))
        for _ in range(400):
            opened.enter_context(socket.create_connection(where)).sendall(b"GET /hea")
        client = TinkerClient(served.url, served.key)
        opened.callback(client.close)
        client.open(str(byte_model), rank=4, seed=0)
        client.gradient(1, seq=client.number())
        assert client.result(client.step())["metrics"]["grad_norm:mean"] > 0
        assert psutil.Process(served.pid).num_fds() < 200
        assert "open files" not in served.log.read_text()
