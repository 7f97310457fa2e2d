"""``plait download``: a checkpoint or a job's files, in a directory that is there only when whole.

What comes from a server is not trusted with this machine's paths: a member that would lie outside
the directory, and a link, are refused.
"""

import shutil
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from plait.cli.client.server import Server, segment
from plait.cli.client.session import connected
from plait.cli.console import show_json
from plait.core.errors import ConfigError, RemoteError, StoreError

SCHEME = "tinker://"


def download_command(what: str, *, out: Path | None, as_json: bool) -> int:
    """Fetch ``what`` into ``out``."""
    target = out or Path(_name(what))
    if target.exists():
        raise ConfigError(f"{target} exists: give --out a new directory")
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        with connected() as server:
            (_checkpoint if what.startswith(SCHEME) else _artifacts)(server, what, part)
        part.rename(target)
    except OSError as error:
        raise StoreError(f"cannot write {target} ({error.strerror or error})") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    files = sorted(str(f.relative_to(target)) for f in target.rglob("*") if f.is_file())
    if as_json:
        show_json({"directory": str(target), "files": files})
    else:
        print(f"{target}: {len(files)} files")
    return 0


def _name(what: str) -> str:
    """A directory's name for what is fetched: the checkpoint's own, or the job's."""
    last = PurePosixPath(what.removeprefix(SCHEME)).name.replace(":", ".")
    if last in ("", ".", ".."):
        raise ConfigError(f"{what} names nothing: give a tinker:// path or a job")
    return last


def _checkpoint(server: Server, path: str, into: Path) -> None:
    with tempfile.TemporaryFile(dir=into.parent) as whole:
        with server.stream("/v1/checkpoints/archive", path=path) as answer:
            for block in answer.iter_bytes():
                whole.write(block)
        whole.seek(0)
        try:
            with tarfile.open(fileobj=whole) as archive:
                for member in archive:
                    _member(archive, member, into)
        except (tarfile.TarError, EOFError) as error:
            raise RemoteError(f"{path} came broken ({error}): ask again") from error


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo, into: Path) -> None:
    """By hand: ``extract`` has its ``filter`` only from Python 3.11.4 on."""
    place = _inside(into, member.name)
    if member.isdir():
        place.mkdir(parents=True, exist_ok=True)
        return
    content = archive.extractfile(member) if member.isfile() else None
    if content is None:
        raise RemoteError(f"the server sends {member.name}, which is no file: refused")
    place.parent.mkdir(parents=True, exist_ok=True)
    with content, place.open("wb") as out:
        shutil.copyfileobj(content, out)


def _artifacts(server: Server, job: str, into: Path) -> None:
    base = f"/v1/jobs/{segment(job)}/artifacts"
    for artifact in server.get(base)["artifacts"]:
        file = _inside(into, str(artifact["path"]))
        file.parent.mkdir(parents=True, exist_ok=True)
        path = quote(artifact["path"], safe="/")
        with server.stream(f"{base}/{path}") as answer, file.open("wb") as out:
            for block in answer.iter_bytes():
                out.write(block)


def _inside(directory: Path, name: str) -> Path:
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise RemoteError(f"the server names a file outside ({relative}): refused")
    return directory / relative
