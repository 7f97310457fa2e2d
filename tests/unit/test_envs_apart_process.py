"""The process of an environment: what ends with it, what it reaches, where its words go."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from apart_support import MARK, Told, first_to_go, lives, marked, needs_bubblewrap, opened, until
from apart_support import boxed as boxed
from apart_support import home as home

from plait.cluster import sandbox
from plait.core.errors import ConfigError


async def test_what_it_started_ends_with_it(home: Path, byte_model: Path, boxed: bool) -> None:
    async with opened(home, byte_model, boxed=boxed) as told:
        await told.says(f"detaches {MARK}")
        family = marked()
        assert len(family) == 2
        for pid in family:
            assert first_to_go(pid)
    await until(lambda: not any(lives(pid) for pid in family))


async def test_it_ends_with_its_parent(home: Path, byte_model: Path, boxed: bool) -> None:
    """``kill -9`` of the server leaves neither the process nor what it has started."""
    code = (
        "import asyncio\nfrom pathlib import Path\n"
        "from plait.envs.apart.place import Place\n"
        "from plait.envs.apart.source import ApartSource\n"
        "from plait.models.tokenizer import Tokenizer\n"
        "async def main():\n"
        f"    model = Path({str(byte_model)!r})\n"
        f"    place = Place(sys_path=({str(home)!r},), model_dir=model, sandboxed={boxed})\n"
        "    source = ApartSource('mine:Source', {}, seed=1, place=place)\n"
        "    await source.open()\n"
        "    one, two = source.make(0, 'train'), source.make(1, 'train')\n"
        "    await one.start()\n    await two.start()\n"
        f"    await one.step(Tokenizer(model).encode('detaches {MARK}'))\n"
        "    await two.step(Tokenizer(model).encode('blocks'))\n"
        "asyncio.run(main())"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    await until(lambda: len(marked()) == 2)
    family = marked()
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    await until(lambda: not any(lives(pid) for pid in family))


async def test_what_it_prints_is_in_its_log(home: Path, byte_model: Path, boxed: bool) -> None:
    async with opened(home, byte_model, boxed=boxed) as told:
        await told.says("prints", index=8)
        await told.fails("raises")
    log = (home.parent / "log").read_text()
    for line in (
        "starting 8",
        "to the log",
        "and straight",
        "KeyError: 'no such tool'",
        "ValueError: not even that",
        "the source is closed",
    ):
        assert line in log


@needs_bubblewrap
async def test_in_a_sandbox_it_reaches_nothing_but_its_own(home: Path, byte_model: Path) -> None:
    async def look(told: Told, what: str, where: object) -> str:
        return str((await told.says(f"look {what} {where}")).info["why"])

    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with opened(home, byte_model, boxed=True) as told:
        assert await look(told, "read", home / "mine.py") == "ok"
        assert await look(told, "read", byte_model / "tokenizer.json") == "ok"
        assert await look(told, "read", home.parent / "secret") == "FileNotFoundError"
        assert await look(told, "read", home.parent / "log") == "FileNotFoundError"
        assert await look(told, "read", f"/proc/{os.getpid()}/environ") == "FileNotFoundError"
        for place in (home / "mine.py", byte_model / "x", "/x", "/dev/x", "/usr/x"):
            assert await look(told, "write", place) in ("OSError", "PermissionError"), place
        assert await look(told, "write", "/tmp/x") == "ok"
        assert await look(told, "connect", port) in ("ConnectionRefusedError", "OSError")
    server.close()
    await server.wait_closed()


@needs_bubblewrap
async def test_a_model_of_links_is_seen_in_a_sandbox(home: Path, byte_model: Path) -> None:
    blobs, model = home.parent / "blobs", home.parent / "snapshot"
    blobs.mkdir()
    model.mkdir()
    for n, file in enumerate(byte_model.iterdir()):  # noqa: ASYNC240 - a test
        (blobs / str(n)).write_bytes(file.read_bytes())
        (model / file.name).symlink_to(Path("..") / "blobs" / str(n))
    async with opened(home, model, boxed=True) as told:
        assert (await told.says("right")).reward == 1.0


async def test_without_bubblewrap_nothing_runs(
    home: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "PROGRAM", "no-such-program")
    with pytest.raises(ConfigError, match="bubblewrap"):
        async with opened(home, byte_model, boxed=True):
            pass
    assert not (home.parent / "log").exists()
