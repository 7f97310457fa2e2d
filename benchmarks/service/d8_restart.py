"""D8: ``kill -9`` of a service that knows 50 runs: how soon the next life serves, and whether the
clients go on. The head and its workers are killed, by their ids; the port stays the same."""

import json
import os
import signal
import subprocess
from contextlib import AbstractContextManager
from urllib.parse import urlsplit

from benchmarks.figure import Measured
from benchmarks.peers.environment import TINKER
from benchmarks.service.clients import NEWEST, PROGRAMS
from benchmarks.service.servers import MODEL, Served, Start, family, serving

RUNS, TRIED = 50, 3
SERVING_S = 10.0
REPEATS = 3
LINE_S = 900


def measure(model: str = MODEL, runs: int = RUNS) -> Measured:
    """The bar over the slowest start."""
    starts: list[float] = []
    with serving(model) as (served, start), _client(served, runs) as client:
        try:
            assert client.stdout is not None
            made = json.loads(client.stdout.readline())["made"]
            start.end(signal.SIGKILL)
            for _ in range(REPEATS - 1):
                with _again(served) as (again, process):
                    starts.append(again.ready_s)
                    process.end(signal.SIGKILL)
            with _again(served) as (again, _):
                starts.append(again.ready_s)
                rss = sum(p.memory_info().rss for p in family(again.pid))
                out, _ = client.communicate("go on\n", timeout=LINE_S)
                found = json.loads(out.splitlines()[-1])
        except BaseException:
            client.kill()
            raise
    slowest = max(starts)
    return Measured(
        value=SERVING_S / slowest,
        ok=slowest <= SERVING_S and made == runs and found["went_on"] == TRIED,
        detail={
            "serving_s": starts,
            "first_step_after_s": found["seconds"],
            "went_on": found["went_on"],
            "tried": TRIED,
            "runs": made,
            "rss_gb": rss / 1e9,
        },
    )


def _client(served: Served, runs: int) -> subprocess.Popen[str]:
    told = served.told(runs=runs, tried=TRIED)
    return subprocess.Popen(
        [TINKER[NEWEST].python(), str(PROGRAMS / "known.py"), told],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def _again(served: Served) -> AbstractContextManager[tuple[Served, Start]]:
    """The next life, under the same address."""
    port = urlsplit(served.url).port or 0
    return serving(served.model, directory=served.directory, port=port, key=served.key)
