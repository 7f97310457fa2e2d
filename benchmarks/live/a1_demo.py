"""A1: ``plait demo`` as a user runs it."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.figure import Measured

MAX_S = 300.0
MIN_GAIN = 0.2


def measure() -> Measured:
    """Aggregate speed-up of three jobs shared against one after the other."""
    directory = Path(tempfile.mkdtemp(prefix="plait-bench-")) / "demo"
    plait = Path(sys.executable).with_name("plait")
    start = time.perf_counter()
    done = subprocess.run(
        [str(plait), "demo", "--dir", str(directory), "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ},
    )
    seconds = time.perf_counter() - start
    result = json.loads(done.stdout.strip().splitlines()[-1])
    gains = {name: (job["gain"], job["gain_ci95"]) for name, job in result["jobs"].items()}
    learned = all(gain >= MIN_GAIN and low > 0 for gain, (low, _) in gains.values())
    return Measured(
        value=result["aggregate"],
        ok=result["aggregate"] >= 2.0 and learned and seconds <= MAX_S,
        detail={**result, "seconds": seconds, "every_job_learned": learned},
    )
