"""Bench: worker processes that are timed, alone and side by side.

A process is started as a launch starts its workers. What it is to do is asked for in two steps: it
warms up and says how long a unit of the work takes, then it gets a window of the machine's clock,
works all through it and answers with the units that lay in it whole. So two processes that get the
same window are beside each other in all that is counted.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self, TypeVar

from plait.cluster.local import worker_env
from plait.core.errors import EngineError

WAIT_S = 600.0
"""The first use of a model converts and fuses its weights."""
SOON_S = 0.02
"""From the answer of the last one that is ready to the beginning of the window: time enough for a
message, so that both have begun."""
SLOWED = 1.5
"""Room in a window for what a neighbour does beyond the share alone, which warming up has shown."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One kind of work."""

    what: str
    """``decode``, ``decode_adapter``, ``prefill``, ``train``, ``reference``, ``sync``."""
    threads: int
    cores: tuple[int, ...] = ()
    """Kept to these; empty: wherever the system puts them."""
    rows: int = 1
    tokens: int = 1
    """Of each row: context of a decode step, tokens of a prefill, length in training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """It has warmed up."""

    unit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What is counted, on the machine's monotonic clock."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Seconds of each unit in the window."""

    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The engine could not do it."""

    message: str


class BenchProcess:
    """One process and the connection to it; a context."""

    def __init__(
        self,
        model_dir: Path,
        *,
        cores: int,
        cache_tokens: int,
        log: Path,
        device: str = "cpu",
        dtype: str = "fp32",
    ) -> None:
        self._log = log
        ours, theirs = socket.socketpair()
        with ours, theirs, log.open("ab") as out:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "plait.engines.torch.bench"),
                    *(str(theirs.fileno()), str(model_dir), str(cache_tokens), device, dtype),
                ],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **worker_env(cores)},
            )
            self._conn = Connection(ours.detach())

    def ask(self, ask: Ask) -> None:
        """Have it warm up; ``get`` its ``Ready``."""
        with contextlib.suppress(OSError):  # told by ``get``
            self._conn.send(ask)

    def go(self, window: Window) -> None:
        """Have it work; ``get`` its ``Took``."""
        with contextlib.suppress(OSError):
            self._conn.send(window)

    def get(self, kind: type[T]) -> T:
        """Its answer; EngineError if it has ended, refuses, or takes too long."""
        try:
            answer = self._conn.recv() if self._conn.poll(WAIT_S) else None
        except (EOFError, OSError):
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            raise EngineError(
                f"the measured process ended ({' '.join(last) or 'no message'}): see {self._log}"
            ) from None
        if isinstance(answer, Refused):
            raise EngineError(f"cannot be measured: {answer.message}")
        if not isinstance(answer, kind):
            raise EngineError(f"the measured process has said nothing for {WAIT_S:.0f} s")
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._conn.close()
        self._process.kill()
        self._process.wait()


def measure(
    processes: Sequence[BenchProcess], asks: Sequence[Ask], *, units: int, least_s: float
) -> list[tuple[float, ...]]:
    """Times of ``asks``, one per process, side by side: in a window of ``least_s`` and at least
    ``units`` of the longest unit."""
    for process, ask in zip(processes, asks, strict=False):
        process.ask(ask)
    ready = [process.get(Ready) for process, _ in zip(processes, asks, strict=False)]
    slow = 1.0 if len(asks) == 1 else SLOWED
    length_s = max(least_s, (units + 1) * slow * max(r.unit_s for r in ready))
    start_s = time.monotonic() + SOON_S
    window = Window(start_s=start_s, end_s=start_s + length_s)
    for process, _ in zip(processes, asks, strict=False):
        process.go(window)
    return [process.get(Took).seconds for process, _ in zip(processes, asks, strict=False)]
