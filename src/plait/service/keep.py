"""Keep: checkpoints as directories. One is made of a committed version's files, by name only: hard
links, so it costs nothing and outlives the version, whose files are never written again.

A directory is whole or not there (``store.files``), and its name holds the number of the request
that made it: what an interrupted save had made is found again, never mistaken for another's.
"""

import os
import shutil
from pathlib import Path as Folder

from plait.core.errors import RequestError
from plait.service.paths import SECTIONS, Path
from plait.service.work import CheckpointKind
from plait.store.files import VersionWriter, disk_errors

OPTIMIZER = "optimizer.safetensors"
"""What a checkpoint without an optimizer lacks."""


def folder_of(path: Path, seq: int) -> Folder:
    """Where a checkpoint that request ``seq`` makes lies, below the directory of all of them."""
    run = path.model_id.replace(":", ".")
    return Folder(run) / SECTIONS[path.kind] / f"{path.name}@{seq}"


def keep(version: Folder, target: Folder, *, kind: CheckpointKind, optimizer: bool) -> int:
    """Make ``target`` of a version's files, unless it is there; its bytes."""
    if not target.is_dir():
        with VersionWriter(target) as folder:
            for file in _files(version, kind, optimizer):
                _link(file, folder / file.name)
    return size_of(target)


def cost(version: Folder, *, kind: CheckpointKind, optimizer: bool) -> int:
    """Bytes that ``keep`` would make a checkpoint of."""
    with disk_errors(version):
        return sum(file.stat().st_size for file in _files(version, kind, optimizer))


def has_optimizer(folder: Folder) -> bool:
    """True if training can go on with what the optimizer knew."""
    return (folder / OPTIMIZER).is_file()


def size_of(folder: Folder) -> int:
    """Bytes of a checkpoint's files."""
    with disk_errors(folder):
        return sum(file.stat().st_size for file in folder.iterdir())


def check_there(folder: Folder, path: Path) -> None:
    """RequestError if a checkpoint's files are gone."""
    if not folder.is_dir():
        raise RequestError(f"the files of {path} are gone: choose another checkpoint")


def remove(folder: Folder) -> None:
    """Remove a checkpoint whose row is gone."""
    leaving = folder.with_name(f"gone-{folder.name}")
    with disk_errors(folder):
        if folder.is_dir():
            folder.rename(leaving)
        shutil.rmtree(leaving, ignore_errors=True)


def _files(version: Folder, kind: CheckpointKind, optimizer: bool) -> list[Folder]:
    with_optimizer = optimizer and kind is CheckpointKind.TRAINING
    files = sorted(file for file in version.iterdir() if file.is_file())
    return [file for file in files if with_optimizer or file.name != OPTIMIZER]


def _link(source: Folder, target: Folder) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links, or one link too many
        shutil.copyfile(source, target)
