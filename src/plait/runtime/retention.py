"""Retention: which committed versions of a run stay on disk.

The newest ones that may still be sampled or resumed from, and every ``every``-th as a checkpoint,
of which those stay that ``store.retention`` does not call surplus; how good one is, is the
``score`` of the progress that was committed with it. Checkpoints that a user asked
for are not the schedule's to remove; one that names a version's directory keeps it.

Three steps, the middle one in the store: what it has forgotten can be removed at leisure, and what
is not removed then is surplus after the next commit too.
"""

from collections.abc import Sequence
from pathlib import Path

from plait.core.ids import RunId
from plait.store.files import VersionDirs
from plait.store.retention import Rule, surplus
from plait.store.rows import CheckpointRow
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
        keep_best: int = 0,
        max_staleness: int,
        launch_dir: Path,
    ) -> None:
        """``launch_dir``: what the store's paths are relative to."""
        self._store, self._run_id, self._launch_dir = store, run_id, launch_dir
        self._dirs = VersionDirs(versions_dir)
        self._every = every
        self._rule = Rule(keep_last=keep_last, keep_best=keep_best)
        self._recent = max_staleness + 2

    def note(self, version: int) -> list[int]:
        """After a commit: write it down beside the versions; which there are. Touches files."""
        self._dirs.note_committed(version)
        return self._dirs.versions()

    def record(self, version: int, there: Sequence[int], *, now: float) -> list[int]:
        """Record the version if it is a checkpoint, drop the rows of what is surplus of those that
        are ``there``; which these are."""
        repository = self._store.checkpoints
        if version > 0 and version % self._every == 0:
            repository.put(
                self._run_id,
                f"step-{version}",
                version=version,
                path=self._path(version),
                kind="training",
                automatic=True,
                score=self._store.runs.get(self._run_id).progress.get("score"),
                now=now,
            )
        rows = repository.list(self._run_id)
        leaving = surplus([row for row in rows if row.automatic], self._rule, now=now)
        if leaving:
            repository.delete_many((row.run_id, row.name) for row in leaving)
        keep = {row.version for row in rows if row not in leaving and self._names_version(row)}
        old = [v for v in there[: -self._recent] if v not in keep]
        if old:
            self._store.mutations.forget_versions(self._run_id, old)
        return old

    def remove(self, versions: Sequence[int]) -> None:
        """Remove versions whose rows are gone. Touches files."""
        self._dirs.remove(versions)

    def _names_version(self, row: CheckpointRow) -> bool:
        return row.automatic or row.path == self._path(row.version)

    def _path(self, version: int) -> str:
        return str(self._dirs.path(version).relative_to(self._launch_dir))
