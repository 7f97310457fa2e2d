"""Archive: a directory's files as they leave the server, one by one or as a tar archive.

Invariant: nothing but plain files that lie in the directory or below it is ever sent. What a
symbolic link names lies elsewhere.
"""

import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from fastapi.responses import StreamingResponse

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
    """A directory as ``TITLE.tar``."""
    return StreamingResponse(
        tar(folder, files(folder)),
        media_type="application/x-tar",
        headers={"Content-Disposition": f'attachment; filename="{title}.tar"'},
    )


def tar(folder: Path, names: Sequence[str]) -> Iterator[bytes]:
    """An archive of some files, a piece at a time."""
    for name in names:
        with (folder / name).open("rb") as file:
            info = tarfile.TarInfo(name)
            info.size = (folder / name).stat().st_size
            info.mtime = int((folder / name).stat().st_mtime)
            yield info.tobuf(tarfile.PAX_FORMAT)
            left = info.size
            while left and (piece := file.read(min(PIECE, left))):
                left -= len(piece)
                yield piece
        yield b"\0" * (-info.size % tarfile.BLOCKSIZE)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)
