"""Where the SDKs' environments and programs are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.environment import TINKER
from plait.models.cache import cache_root

ENVIRONMENTS = {
    sdk: cache_root() / "peers" / env.name / "bin" / "python" for sdk, env in TINKER.items()
}
"""Looked up before the tests have a cache of their own."""
NEWEST = "0.38.0"
PROGRAMS = Path(__file__).parent / "programs"
PROBES = Path(__file__).parents[2] / "benchmarks" / "service" / "programs" / "probes.py"
DEADLINE_S = 150.0

Run = Callable[..., dict[str, Any]]
