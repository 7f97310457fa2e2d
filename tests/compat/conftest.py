"""The real SDKs, each in an environment of its own; a test is skipped where there is none.

``python -m benchmarks.peers.environment`` makes them, as do the benchmarks that need them.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import serving
from sdk_support import DEADLINE_S, ENVIRONMENTS, Run
from serving import Served

from plait.models.registry import resolve
from plait.runtime.settings import Settings


@pytest.fixture
def run_sdk() -> Run:
    """Runs a program in an SDK's environment; what its last line says."""

    def run(sdk: str, program: Path, **told: Any) -> dict[str, Any]:
        python = ENVIRONMENTS[sdk]
        if not python.exists():
            pytest.skip(f"there is no environment with tinker {sdk}")
        done = subprocess.run(
            [python, program, json.dumps(told)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "TINKER_TELEMETRY": "0", "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))

    return run


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A real house over a real, if tiny, model: probes look at its text."""
    folder, settings = tmp_path_factory.mktemp("house"), Settings(cores=1)
    with serving.served(folder, resolve("tiny"), settings=settings) as told:
        yield told
