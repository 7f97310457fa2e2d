"""``plait serve`` as a process that is started again whenever it ends, and what it runs on."""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil

COMMAND = (sys.executable, "-c", "from plait.cli.entry import main; main()", "serve")
UP_S = 120.0
"""How long it may take to answer, on a machine that is busy with other things."""
GONE_S = 20.0


class Served:
    """A service in a process of its own; use as a context."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory, self._arguments = directory, arguments
        self.url = f"http://127.0.0.1:{_free_port()}"
        self.log = directory.with_name(f"{directory.name}.log")
        self.key = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Served":
        self.start()
        self.until_up()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(everything=True)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, again under the same address."""
        bind = self.url.removeprefix("http://")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*COMMAND, "--dir", str(self.directory), "--bind", bind, *self._arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def until_up(self) -> float:
        """Wait until it answers; how long that took."""
        began = time.monotonic()
        while True:
            assert self.alive, self.log.read_text()
            try:
                if httpx.get(f"{self.url}/healthz", timeout=5.0).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.02)
            assert time.monotonic() - began < UP_S, self.log.read_text()
        found = re.search(r"tml-\S+", self.log.read_text())
        assert found is not None
        self.key = found[0]
        return time.monotonic() - began

    def workers(self) -> list[psutil.Process]:
        """Its worker processes."""
        try:
            found = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [process for process in found if _is_worker(process)]

    def kill(self, *, everything: bool = False) -> None:
        """``kill -9`` of the service, or of its workers at the same moment too."""
        workers = self.workers() if everything else []
        if self._process is not None:
            self._process.kill()
        for worker in workers:
            kill(worker)
        if self._process is not None:
            self._process.wait(GONE_S)

    def terminate(self) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(GONE_S)


def kill(process: psutil.Process) -> None:
    """``kill -9``, unless it has gone."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def _is_worker(process: psutil.Process) -> bool:
    try:
        return any("plait.runtime.worker" in part for part in process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
