"""Cache: where converted models lie on this machine, and how one process at a time fills a place.

``PLAIT_CACHE``, else ``XDG_CACHE_HOME/plait``, else ``~/.cache/plait``. An entry is a directory
that exists only when it is complete: it is built beside its place and renamed into it, under a file
lock, so that a killed build leaves nothing that could be taken for a model and two processes build
once.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from plait.core.errors import ModelError

BUILD_TIMEOUT_S = 900.0
"""A conversion takes tens of seconds; a lock held much longer than that is a stuck process."""


def cache_root(override: str | Path | None = None) -> Path:
    """The directory that plait may fill; not created here."""
    if override is not None:
        return Path(override).expanduser()
    if named := os.environ.get("PLAIT_CACHE"):
        return Path(named).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "plait"
    return Path.home() / ".cache" / "plait"


def build_once(
    place: Path, build: Callable[[Path], None], *, timeout_s: float = BUILD_TIMEOUT_S
) -> Path:
    """``place``, after ``build(directory)`` has filled it if it did not exist yet.

    What ``build`` raises passes through and nothing is left behind.
    """
    if place.is_dir():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.with_name(place.name + ".lock"), timeout=timeout_s):
            if not place.is_dir():
                _build(place, build)
    except Timeout as error:
        raise ModelError(
            f"another process has been filling {place} for {timeout_s:.0f} s: "
            f"end it, or set PLAIT_CACHE to another directory"
        ) from error
    except OSError as error:
        raise ModelError(
            f"cannot write the model cache {place.parent} ({error.strerror or error}): "
            f"set PLAIT_CACHE to a directory with room"
        ) from error
    return place


def _build(place: Path, build: Callable[[Path], None]) -> None:
    # One fixed name, which the lock makes safe: the next build clears what a killed one left.
    scratch = place.with_name(f".{place.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        build(scratch)
        scratch.rename(place)
    except SafetensorError as error:
        if "os error" not in str(error):
            raise
        raise OSError(str(error)) from error  # what the disk refused, under another name
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
