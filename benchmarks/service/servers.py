"""Servers: plait's and a rival's, in processes of their own on free ports, ended by their ids."""

import json
import os
import queue
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.peers.environment import SKYRL
from plait.models.registry import resolve

ROOT = Path(__file__).parents[2]
PLAIT = (sys.executable, "-c", "from plait.cli.entry import main; main()")
START_S = 180.0
END_S = 30.0
IDLE = 0.1
"""Of a core: a server that takes more has not done loading. (SkyRL's idle engine takes 0.04.)"""
CORES = 2
MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server that accepts requests."""

    url: str
    key: str
    model: str
    """What its clients call the base model."""
    model_dir: str
    pid: int
    directory: Path
    ready_s: float
    """From the start of the process to the first good answer."""

    def told(self, **more: Any) -> str:
        """What a client's program needs, as its one argument."""
        return json.dumps({"url": self.url, "key": self.key, "model": self.model, **more})

    def cpu_s(self) -> float:
        """Processor time of all its processes so far."""
        total = 0.0
        for process in family(self.pid):
            times = process.cpu_times()
            total += times.user + times.system
        return total


class Start:
    """A server process whose output is kept, so that a failure can say why."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str] = os.environ, log: Path
    ) -> None:
        self._log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=dict(env)
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def until(self, pattern: str) -> str:
        """What the first line that has it says; RuntimeError if there is none in time."""
        deadline = time.monotonic() + START_S
        while (left := deadline - time.monotonic()) > 0:
            try:
                text = self._lines.get(timeout=left)
            except queue.Empty:
                break
            if text is None:
                break
            if found := re.search(pattern, text):
                return found[1]
        raise RuntimeError(f"the server did not come up: {self.said()}")

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-1500:]

    def end(self, number: int = signal.SIGTERM) -> None:
        """End it and everything that it has started."""
        left = family(self.process.pid)
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for process in left:
            if process.is_running():
                process.kill()
        psutil.wait_procs(left, timeout=END_S)
        self._reader.join(END_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it has started."""
    try:
        head = psutil.Process(pid)
        return [head, *head.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@contextmanager
def plait_serve(
    model: str = MODEL,
    *,
    directory: Path | None = None,
    port: int = 0,
    cores: int = CORES,
    options: Sequence[str] = (),
    key: str = "",
) -> Iterator[Served]:
    """``plait serve``; killed hard at the end of the block if the block itself says so."""
    with serving(model, directory=directory, port=port, cores=cores, options=options, key=key) as (
        served,
        _,
    ):
        yield served


@contextmanager
def serving(
    model: str = MODEL,
    *,
    directory: Path | None = None,
    port: int = 0,
    cores: int = CORES,
    options: Sequence[str] = (),
    key: str = "",
) -> Iterator[tuple[Served, Start]]:
    """The same with its process, for who wants to kill it. ``key``: of a directory that has one."""
    place = directory or Path(tempfile.mkdtemp(prefix="plait-bench-"))
    begun = time.perf_counter()
    start = Start(
        [
            *(*PLAIT, "serve", "--dir", str(place), "--model", model),
            *("--bind", f"127.0.0.1:{port}", "--cores", str(cores), *options),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        log=place.with_name(place.name + ".log"),
    )
    try:
        url = start.until(r" on (http://\S+)")
        key = key or start.until(r"key \(shown once\): (\S+)")
        until_healthy(url, start)
        yield (
            Served(
                url=url,
                key=key,
                model=model,
                model_dir=str(resolve(model)),
                pid=start.process.pid,
                directory=place,
                ready_s=time.perf_counter() - begun,
            ),
            start,
        )
    finally:
        start.end()


@contextmanager
def skyrl(model: str = MODEL, *, adapters: int = 6, cores: int = CORES) -> Iterator[Served]:
    """SkyRL tx with its JAX engine on as many cores as ours."""
    place = Path(tempfile.mkdtemp(prefix="plait-bench-"))
    model_dir, port = str(resolve(model)), free_port()
    programs = SKYRL.python().parent
    backend = {
        "max_lora_adapters": adapters,
        "max_lora_rank": 8,
        "train_micro_batch_size": 4,
        "sample_max_num_sequences": 32,
    }
    begun = time.perf_counter()
    start = Start(
        [
            *("taskset", "--cpu-list", ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores]))),
            *(str(programs / "uv"), "run", "-m", "skyrl.tinker.api", "--base-model", model_dir),
            *("--backend", "jax", "--backend-config", json.dumps(backend)),
            *("--database-url", f"sqlite:///{place / 'tinker.db'}"),
            *("--checkpoints-base", str(place / "checkpoints")),
            *("--host", "127.0.0.1", "--port", str(port)),
        ],
        env={
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "JAX_PLATFORMS": "cpu",
        },
        log=place.with_name(place.name + ".log"),
    )
    try:
        url = f"http://127.0.0.1:{port}"
        until_healthy(url, start)
        yield Served(
            url=url,
            key=f"tml-{secrets.token_hex(8)}",
            model=model_dir,
            model_dir=model_dir,
            pid=start.process.pid,
            directory=place,
            ready_s=time.perf_counter() - begun,
        )
    finally:
        start.end()


def until_healthy(url: str, start: Start) -> None:
    """Wait for the first good answer."""
    deadline = time.monotonic() + START_S
    while start.process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/api/v1/healthz", timeout=5.0).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"the server did not come up: {start.said()}")


def until_idle(served: Served) -> None:
    """Wait until it computes nothing: a server can answer long before its engine is loaded, and
    meanwhile it would take a core of whoever is measured beside it."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        began_s, before_s = time.monotonic(), served.cpu_s()
        time.sleep(1.0)
        if served.cpu_s() - before_s < IDLE * (time.monotonic() - began_s):
            return
    raise RuntimeError(f"{served.url} was still busy after {START_S:.0f} s without a request")


def free_port() -> int:
    """A port that nobody had a moment ago."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
