"""Archive: a directory's files as they leave the server, one by one or as a tar archive.

Invariants: nothing but plain files that lie in the directory or below it is ever sent (what a
symbolic link names lies elsewhere); an archive that is begun is sent whole, though the directory is
removed meanwhile.
"""

import os
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from fastapi.responses import StreamingResponse

from plait.core.errors import NotFound

PIECE = 1 << 20
"""Bytes of an archive that are in memory at a time."""


def files(folder: Path) -> list[str]:
    """What may be sent of a directory, relative to it."""
    return sorted(
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and not file.is_symlink()
    )


def response(folder: Path, title: str) -> StreamingResponse:
    """A directory as ``TITLE.tar``; NotFound if it has just been removed."""
    opened = ExitStack()
    try:
        held = {n: opened.enter_context((folder / n).open("rb")) for n in files(folder)}
        folder.stat()
    except OSError:
        opened.close()
        raise NotFound(f"the files of {title} are gone: choose another checkpoint") from None
    return StreamingResponse(
        tar(held, opened),
        media_type="application/x-tar",
        headers={"Content-Disposition": f'attachment; filename="{title}.tar"'},
    )


def tar(held: Mapping[str, BinaryIO], opened: ExitStack) -> Iterator[bytes]:
    """An archive of files that are open, a piece at a time; they are closed behind it."""
    with opened:
        for name, file in held.items():
            found = os.fstat(file.fileno())
            info = tarfile.TarInfo(name)
            info.size, info.mtime = found.st_size, int(found.st_mtime)
            yield info.tobuf(tarfile.PAX_FORMAT)
            left = info.size
            while left and (piece := file.read(min(PIECE, left))):
                left -= len(piece)
                yield piece
            yield b"\0" * (-info.size % tarfile.BLOCKSIZE)
        yield b"\0" * (2 * tarfile.BLOCKSIZE)
