"""D8: ``kill -9`` of a service that knows 50 runs: how soon the next life serves, and whether the
clients go on. The head and its workers are killed, by their ids; the port stays the same."""

import json
import os
import signal
import subprocess
from urllib.parse import urlsplit

from benchmarks.figure import Measured
from benchmarks.peers.environment import TINKER
from benchmarks.service.clients import NEWEST, PROGRAMS
from benchmarks.service.servers import MODEL, family, serving

RUNS, TRIED = 50, 3
SERVING_S = 10.0
REPEATS = 3
LINE_S = 900


def measure(model: str = MODEL, runs: int = RUNS) -> Measured:
    """The bar over the slowest start."""
    with serving(model) as (served, start):
        client = subprocess.Popen(
            [
                TINKER[NEWEST].python(),
                str(PROGRAMS / "known.py"),
                served.told(runs=runs, tried=TRIED),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            assert client.stdout is not None
            made = json.loads(client.stdout.readline())["made"]
            start.end(signal.SIGKILL)
            starts, found, resting = [], {}, []
            for i in range(REPEATS):
                port = urlsplit(served.url).port or 0
                with serving(model, directory=served.directory, port=port, key=served.key) as (
                    again,
                    process,
                ):
                    starts.append(again.ready_s)
                    resting.append(sum(p.memory_info().rss for p in family(again.pid)))
                    if i == REPEATS - 1:
                        out, _ = client.communicate("go on\n", timeout=LINE_S)
                        found = json.loads(out.splitlines()[-1])
                    process.end(signal.SIGKILL)
        finally:
            if client.poll() is None:
                client.kill()
            client.wait()
    slowest = max(starts)
    return Measured(
        value=SERVING_S / slowest,
        ok=slowest <= SERVING_S and made == runs and found["went_on"] >= TRIED,
        detail={
            "serving_s": starts,
            "first_step_after_s": found["seconds"],
            "went_on": found["went_on"],
            "runs": made,
            "rss_gb": max(resting) / 1e9,
        },
    )
