"""Snapshots: an adapter's files kept under a second name, so that nobody else's removal takes them.

Hard links: a version on disk never changes, and its bytes stay as long as one name has them, so a
snapshot costs two directory entries. Optimizer state is not linked, for nobody samples it.

Invariants: a snapshot is whole under its name or not there; taken again, it stays as it is; what is
half-made or half-removed is cleared by ``clear_unfinished``.
"""

import errno
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from plait.core.errors import NotFound
from plait.store.files import STAGING, VersionWriter, disk_errors

FILES = ("adapter_config.json", "adapter_model.safetensors")
"""What an adapter is sampled from (PEFT's names)."""


class Snapshots:
    """Snapshots under one directory; a name may have parts."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        """Where the snapshot of that name lies."""
        return self.root / name

    def take(self, name: str, source: Path, *, durable: bool = True) -> Path:
        """Link the adapter in ``source``; NotFound if it is there no more. ``durable``: it is on
        the disk when this returns."""
        final = self.path(name)
        if final.is_dir():
            return final
        if not all((source / file).is_file() for file in FILES):
            raise NotFound(f"version {source.name} is not kept any more: choose a later one")
        with disk_errors(self.root):
            final.parent.mkdir(parents=True, exist_ok=True)
            if durable:
                with VersionWriter(final) as staging:
                    _fill(staging, source)
            else:
                final.mkdir()
                _fill(final, source)
        return final

    def drop(self, name: str) -> None:
        """Remove a snapshot, or all under a common part; one that is not there is no error."""
        shutil.rmtree(self.path(name), ignore_errors=True)

    def clear(self, keep: Collection[str] = ()) -> None:
        """Remove all but ``keep`` (of the first level), and what an end by force left half-made."""
        if not self.root.is_dir():
            return
        for entry in self.root.iterdir():
            if entry.name not in keep:
                shutil.rmtree(entry, ignore_errors=True)
        for torn in list(self.root.rglob(f"{STAGING}*")):
            shutil.rmtree(torn, ignore_errors=True)


def _fill(directory: Path, source: Path) -> None:
    for file in FILES:
        _link(source / file, directory / file)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copyfile(source, target)
