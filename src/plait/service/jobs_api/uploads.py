"""Uploads: the files that came with jobs, a directory for each submission.

A directory stays as long as a job of it has not ended, and ``KEPT_S`` after one has failed, which
may be gone on with. ``sweep`` runs when the desk opens, for a crash may have come before it, and
whenever a job has ended.
"""

import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from plait.service.jobs_api.naming import digest
from plait.store.store import Store

DIRECTORY = "submissions"
KEPT_S = 7 * 86400.0
"""A week: whoever wants to go on has looked at what failed by then."""
SUBMITTING_S = 3600.0
"""A directory that is younger may belong to a submission that is being looked at."""


class Uploads:
    """All submissions of a house."""

    def __init__(self, directory: Path, store: Store, *, wall: Callable[[], float]) -> None:
        self._root, self._store, self._wall = directory.resolve() / DIRECTORY, store, wall

    def place(self, name: str, text: str, files: Mapping[str, str]) -> Path:
        """Where the submission of that name, job file and files lies."""
        return self._root / f"{name}-{digest(text, *sorted(files), *files.values())}"

    def sweep(self, live: Collection[str], *, ended: str | None = None) -> None:
        """Remove what no job needs: ``live`` are those of jobs that have not ended. ``ended``: of
        the job that has, else nothing is being submitted yet."""
        now = self._wall()
        failed = self._store.jobs.failed(since=now - KEPT_S)
        wanted = {*live, *(row.spec.get("base_dir") for row in failed)}
        for directory in self._root.iterdir() if self._root.is_dir() else ():
            if str(directory) in wanted:
                continue
            if ended in (None, str(directory)) or _born_s(directory) < now - SUBMITTING_S:
                shutil.rmtree(directory, ignore_errors=True)


def _born_s(directory: Path) -> float:
    try:
        return directory.stat().st_mtime
    except OSError:  # it has just gone
        return float("inf")
