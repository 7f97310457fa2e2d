"""A PostgreSQL server of our own: Debian's binaries, a directory in /tmp, a free port, no root.

It ends with the process that started it, however that ends.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
ABSENT = "PostgreSQL is not installed: apt-get install postgresql"
ATTEMPTS = 5
"""Somebody else may take the port between finding it free and using it."""
START_S = 60.0
ROOM_BYTES = 1 << 30
"""What the memory disk must have free to be used: a server's files, many times over."""


class PostgresServer:
    """One server. ``start`` after ``kill`` recovers what it had."""

    def __init__(self) -> None:
        self._bin = BINARIES[-1].parent
        self.root = Path(tempfile.mkdtemp(prefix="plait-pg-", dir=_fast_disk()))
        self.data, self._log = self.root / "data", self.root / "log"
        if os.geteuid() == 0:
            user = _unprivileged()
            os.chown(self.root, user.pw_uid, user.pw_gid)
            self._as = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        else:
            self._as = []
        self._process: subprocess.Popen[bytes] | None = None
        self._n_schemas = 0
        self._run("initdb", "-D", self.data, "-U", "plait", "-A", "trust", "-E", "UTF8", "-N")

    def start(self, port: int | None = None) -> None:
        """Start it and wait until it takes connections."""
        for _ in range(ATTEMPTS):
            self.port = port or _free_port()
            command = [
                *("setpriv", "--pdeathsig", "QUIT", *self._as, "--"),
                *(str(self._bin / "postgres"), "-D", str(self.data), "-p", str(self.port)),
                *("-h", "127.0.0.1", "-k", str(self.root), "-c", "max_connections=40"),
                # So that what a torn log has lost is not in the tables by chance.
                *("-c", "bgwriter_lru_maxpages=0"),
            ]
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.root)
            if self._answers():
                return
        raise RuntimeError(f"PostgreSQL does not start: {self._log.read_text()[-2000:]}")

    def empty(self) -> str:
        """URL of an empty schema, which is as good as a database and much cheaper."""
        self._n_schemas += 1
        name = f"t{self._n_schemas}"
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        return self.url(name)

    def url(self, name: str) -> str:
        where = f"plait@127.0.0.1:{self.port}/postgres"
        return f"postgresql+psycopg://{where}?options=-csearch_path%3D{name}"

    def kill(self) -> None:
        """``kill -9`` of the server; its own processes see that it is gone, and end."""
        self._end(signal.SIGKILL)
        deadline = time.monotonic() + START_S
        while _is_bound(self.port) and time.monotonic() < deadline:
            time.sleep(0.02)

    def close(self) -> None:
        """Stop it, without a last checkpoint, and remove its directory."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.root)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=START_S)
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                psycopg.connect(self._dsn, connect_timeout=5).close()
            except psycopg.OperationalError:
                time.sleep(0.05)
            else:
                return True
        self._end(signal.SIGKILL)
        return False

    @property
    def _dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=plait dbname=postgres"

    def _run(self, program: str, *arguments: object) -> None:
        command = ["setpriv", *self._as, "--", str(self._bin / program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.root)
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}")


def _unprivileged() -> pwd.struct_passwd:
    """PostgreSQL refuses to run as root."""
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("there is neither a user postgres nor nobody: run the tests as a user")


def _fast_disk() -> str | None:
    """The memory disk if there is room: no test here cuts the power."""
    shm = Path("/dev/shm")
    roomy = shm.is_dir() and shutil.disk_usage(shm).free >= ROOM_BYTES
    return str(shm) if roomy and os.access(shm, os.W_OK) else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_bound(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
