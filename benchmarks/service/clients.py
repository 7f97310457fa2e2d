"""Clients: programs with the real SDK, in their environments, against a server."""

import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.environment import TINKER, Environment
from benchmarks.service.servers import Served

PROGRAMS = Path(__file__).parent / "programs"
NEWEST = "0.38.0"
OLDEST = "0.24.1"


def drive(served: Served, program: str, *, sdk: str = NEWEST, **told: Any) -> dict[str, Any]:
    """What a program found; it has one thread, for the server is what is measured."""
    return TINKER[sdk].run(str(PROGRAMS / program), [served.told(**told)], threads=1)


def plain(program: str, told: str, *, threads: int) -> dict[str, Any]:
    """What a program of this environment (transformers, PEFT) found."""
    return Here(name="here", packages=()).run(str(PROGRAMS / program), [told], threads=threads)


class Here(Environment):
    """The environment that runs this."""

    def python(self) -> Path:
        return Path(sys.executable)


def quiet_environment() -> dict[str, str]:
    """For programs that a person would run in a shell: nothing of this process's own settings."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
