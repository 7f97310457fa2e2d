"""A small corpus in a cache of its own, shared by the tests of one session."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

N_SMALL = 500
"""Countries, states and continents, and the 190 largest cities: embedded in a few seconds."""


@contextmanager
def own_cache(path: Path) -> Iterator[None]:
    """Caches of this process and its children lie under ``path``."""
    before = os.environ.get("PLAIT_CACHE")
    os.environ["PLAIT_CACHE"] = str(path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PLAIT_CACHE"]
        else:
            os.environ["PLAIT_CACHE"] = before
