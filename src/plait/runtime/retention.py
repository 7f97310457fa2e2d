"""Retention: which committed versions of a run stay on disk.

The newest ones that may still be sampled or resumed from, and every ``every``-th as a checkpoint,
of which the last ``keep_last`` stay. A pinned checkpoint is never removed.
"""

from pathlib import Path

from plait.core.ids import RunId
from plait.store.files import VersionDirs
from plait.store.store import Store


class Retention:
    """Keeps one run's version directory within bounds."""

    def __init__(
        self,
        store: Store,
        run_id: RunId,
        versions_dir: Path,
        *,
        every: int,
        keep_last: int,
        max_staleness: int,
        launch_dir: Path,
    ) -> None:
        """``launch_dir``: what the store's paths are relative to."""
        self._store, self._run_id, self._launch_dir = store, run_id, launch_dir
        self._dirs = VersionDirs(versions_dir)
        self._every, self._keep_last = every, keep_last
        self._recent = max_staleness + 2

    def apply(self, version: int, *, now: float) -> None:
        """After a commit: note it, record the version if it is a checkpoint, drop what is
        surplus."""
        self._dirs.note_committed(version)
        repository = self._store.checkpoints
        if version > 0 and version % self._every == 0:
            repository.put(
                self._run_id,
                f"step-{version}",
                version=version,
                path=str(self._dirs.path(version).relative_to(self._launch_dir)),
                kind="training",
                automatic=True,
                now=now,
            )
        rows = [row for row in repository.list(self._run_id) if row.automatic]
        loose = [row for row in rows if not row.pinned]
        for row in loose[: -self._keep_last]:
            repository.delete(self._run_id, row.name)
        keep = {row.version for row in rows if row.pinned}
        keep |= {row.version for row in loose[-self._keep_last :]}
        surplus = self._dirs.surplus(self._recent, keep)
        if surplus:
            self._store.mutations.forget_versions(self._run_id, surplus)
            self._dirs.gc(self._recent, keep)
