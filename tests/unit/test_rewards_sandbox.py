"""Sandbox: what a stranger's reward function can reach: nothing but what it was given."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from plait.cluster import sandbox
from plait.core.errors import ConfigError
from plait.rewards.pool import RewardPool

NOSY = """
import os, pathlib, socket

def look(what, where):
    try:
        if what == "read":
            return len(pathlib.Path(where).read_bytes())
        if what == "write":
            return pathlib.Path(where).write_text("x")
        if what == "list":
            return sorted(os.listdir(where))
        if what == "processes":
            return [p for p in os.listdir("/proc") if p.isdigit()]
        if what == "kill":
            return os.kill(int(where), 0)
        if what == "connect":
            socket.create_connection(("127.0.0.1", int(where)), timeout=1)
            return "connected"
        if what == "size":
            place = os.statvfs(where)
            return place.f_blocks * place.f_frsize
        if what == "environment":
            return dict(os.environ)
    except OSError as error:
        return type(error).__name__

def exact(prompts, completions, answer, **_):
    return [float(c == a) for c, a in zip(completions, answer)]

def endless(prompts, completions, **_):
    while True:
        pass
"""
needs_bubblewrap = pytest.mark.skipif(not sandbox.available(), reason="no bubblewrap here")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    place = tmp_path / "job"
    place.mkdir()
    (place / "nosy.py").write_text(NOSY)
    (tmp_path / "secret").write_text("tml-secret")
    return place


@needs_bubblewrap
async def test_a_function_reaches_nothing_but_its_own_files(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAIT_SECRET", "hunter2")
    async with RewardPool(sandboxed=True) as pool:

        async def look(what: str, where: object = "") -> Any:
            return await pool.call("nosy:look", (what, str(where)), 30.0, sys_path=(str(home),))

        assert await look("read", home / "nosy.py") == len(NOSY)
        assert await look("read", home.parent / "secret") == "FileNotFoundError"
        assert await look("read", "/etc/passwd") == "FileNotFoundError"
        assert await look("write", home / "nosy.py") in ("OSError", "PermissionError")
        assert await look("write", "/usr/x") in ("OSError", "PermissionError")
        assert await look("write", "/tmp/x") == 1
        for place in ("/tmp", "/dev/shm"):
            assert await look("size", place) == sandbox.SCRATCH_BYTES
        for place in ("/x", "/dev/x"):
            assert await look("write", place) in ("OSError", "PermissionError")
        assert await look("list", home.parent) == ["job"]
        assert await look("kill", os.getpid()) == "ProcessLookupError"
        assert len(await look("processes")) < 6
        assert "PLAIT_SECRET" not in await look("environment")
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        assert await look("connect", port) in ("ConnectionRefusedError", "OSError")
        server.close()
        await server.wait_closed()


@needs_bubblewrap
async def test_it_scores_and_is_killed_in_time(home: Path) -> None:
    async with RewardPool(sandboxed=True) as pool:
        path = (str(home),)
        scored = await pool.score(
            "nosy:exact", ["p", "p"], ["a", "b"], {"answer": ["a", "a"]}, 30.0, sys_path=path
        )
        assert [one.value for one in scored] == [1.0, 0.0]
        (hung,) = await pool.score("nosy:endless", ["p"], ["a"], {}, 0.5, sys_path=path)
        assert "was killed" in str(hung.error)
        again = await pool.score("nosy:exact", ["p"], ["a"], {"answer": ["a"]}, 30.0, sys_path=path)
        assert [one.value for one in again] == [1.0]


async def test_without_bubblewrap_nothing_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "PROGRAM", "no-such-program")
    async with RewardPool(sandboxed=True) as pool:
        with pytest.raises(ConfigError, match="bubblewrap"):
            await pool.check("nosy:exact", sys_path=(str(home),))
        await pool.check("exact")  # plait's own needs none
