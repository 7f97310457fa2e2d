"""Archives: what leaves the server of a directory."""

import io
import shutil
import tarfile
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from plait.core.errors import NotFound
from plait.core.ids import TenantId
from plait.service import archive
from plait.service.jobs_api import checkpoints
from plait.service.ports import Who


async def test_plain_files_below_are_sent_and_links_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "PIECE", 100)
    (tmp_path / "secret").write_bytes(b"elsewhere")
    folder = tmp_path / "kept"
    (folder / "deep").mkdir(parents=True)
    wanted = {"a": b"x" * 700, "deep/" + "b" * 120: b"", "c": b"y" * 512}
    for name, data in wanted.items():
        (folder / name).write_bytes(data)
    (folder / "link").symlink_to(tmp_path / "secret")
    assert archive.files(folder) == sorted(wanted)
    response = archive.response(folder, "kept")
    shutil.rmtree(folder)  # its owner deletes it meanwhile
    pieces = [piece async for piece in response.body_iterator]
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as packed:
        found = {m.name: packed.extractfile(m).read() for m in packed.getmembers()}  # type: ignore[union-attr]
    assert found == wanted
    assert max(map(len, pieces)) <= 3 * tarfile.BLOCKSIZE, "headers; never a whole file"


class _House:
    """Has one checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.models, self._folder = self, folder

    async def files(self, who: Who, path: str) -> Path:
        return self._folder


async def test_a_checkpoint_is_sent_under_its_name_without_what_it_links_to(tmp_path: Path) -> None:
    folder = tmp_path / "best@7"
    folder.mkdir()
    (folder / "link").symlink_to(__file__)
    api = checkpoints.router(_House(folder))  # type: ignore[arg-type]
    (route,) = (r for r in api.routes if isinstance(r, APIRoute) and r.name == "archive")
    who = Who(tenant_id=TenantId("ann"))
    sent = await route.endpoint(path="tinker://s-1:train:0/weights/best", who=who)
    assert sent.headers["Content-Disposition"] == 'attachment; filename="best.tar"'
    body = b"".join([piece async for piece in sent.body_iterator])
    with tarfile.open(fileobj=io.BytesIO(body)) as packed:
        assert packed.getnames() == []


def test_what_has_just_been_removed_is_not_sent_as_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="gone"):
        archive.response(tmp_path / "gone", "gone")
