"""A tool in its own process: batching, deadlines, restarts, and its end with the parent's."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from plait.core.errors import EnvironmentFailure
from plait.envs.tools import process as process_module
from plait.envs.tools.process import ToolProcess
from plait.envs.tools.shared import lease

TOOL = """
import os, sys, time
class Echo:
    def __init__(self, config):
        if config.get("broken"):
            raise RuntimeError("no index here")
        print("a line that must not reach the replies")
        self.seen = 0
    def answer(self, batch):
        out = []
        for r in batch:
            if r.get("crash"):
                print("about to fall over", file=sys.stderr, flush=True)
                os._exit(7)
            if r.get("bad"):
                raise ValueError("bad request")
            time.sleep(r.get("sleep", 0))
        return [{"n": len(batch), "pid": os.getpid(), "threads": os.environ["OMP_NUM_THREADS"]}
                for r in batch]
"""

Make = Callable[..., ToolProcess]


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    (tmp_path / "echo_tool.py").write_text(TOOL)
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[ToolProcess] = []

    def one(config: dict[str, object] | None = None, **options: float) -> ToolProcess:
        tool = ToolProcess(target="echo_tool:Echo", config=config or {}, name="echo", **options)  # type: ignore[arg-type]
        made.append(tool)
        return tool

    yield one
    for tool in made:
        await tool.aclose()


async def test_calls_made_at_once_are_one_batch_on_one_thread(make: Make) -> None:
    tool = make()
    replies = await tool.call_many([{}] * 5, deadline_s=5)
    assert {r["n"] for r in replies} == {5}
    assert tool.batches == 1
    assert replies[0]["threads"] == "1"
    assert replies[0]["pid"] == tool.pid != os.getpid()


async def test_calls_that_arrive_during_a_batch_form_the_next(make: Make) -> None:
    tool = make()
    await tool.ready()
    first = asyncio.create_task(tool.call({"sleep": 0.3}, deadline_s=5))
    await asyncio.sleep(0.05)
    late = []
    for _ in range(3):
        late.append(asyncio.create_task(tool.call({}, deadline_s=5)))
        await asyncio.sleep(0.02)
    assert (await first)["n"] == 1
    assert [r["n"] for r in await asyncio.gather(*late)] == [3, 3, 3]


async def test_the_event_loop_runs_on_while_the_tool_works(make: Make) -> None:
    tool = make()
    await tool.ready()
    call = asyncio.create_task(tool.call({"sleep": 0.4}, deadline_s=5))
    ticks = 0
    while not call.done():
        await asyncio.sleep(0.02)
        ticks += 1
    assert ticks >= 8


async def test_a_killed_process_is_restarted_and_its_calls_sent_again(make: Make) -> None:
    tool = make()
    await tool.ready()
    old = tool.pid
    assert old is not None
    call = asyncio.create_task(tool.call({"sleep": 0.5}, deadline_s=10))
    await asyncio.sleep(0.1)
    os.kill(old, signal.SIGKILL)
    assert (await call)["pid"] == tool.pid != old
    assert tool.starts == 2


async def test_a_poisonous_request_fails_alone_and_says_how(make: Make) -> None:
    tool = make()
    good, bad, also = await tool.call_many([{}, {"crash": True}, {}], deadline_s=20)
    assert (good["n"], also["n"]) == (1, 1)
    assert isinstance(bad, EnvironmentFailure)
    assert "exit status 7: about to fall over" in str(bad)
    assert (await tool.call({}, deadline_s=5))["n"] == 1


async def test_a_request_that_raises_fails_alone_in_a_process_that_lives(make: Make) -> None:
    tool = make()
    good, bad = await tool.call_many([{}, {"bad": True}], deadline_s=5)
    assert good["n"] == 1
    assert "ValueError: bad request" in str(bad)
    assert tool.starts == 1


async def test_a_hang_ends_in_a_deadline_error_and_a_new_process(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "ABANDONED_S", 0.1)
    tool = make()
    await tool.ready()
    started = time.monotonic()
    with pytest.raises(EnvironmentFailure, match=r"did not answer within 0\.3 s"):
        await tool.call({"sleep": 60}, deadline_s=0.3)
    assert time.monotonic() - started < 2
    assert (await tool.call({}, deadline_s=10))["n"] == 1
    assert tool.starts == 2


async def test_a_batch_that_hangs_is_killed_though_its_callers_wait(make: Make) -> None:
    tool = make(hang_s=0.3)
    with pytest.raises(EnvironmentFailure, match="hung and was killed"):
        await tool.call({"sleep": 60}, deadline_s=30)
    assert tool.starts == 2  # it was given a second chance, alone


async def test_a_short_deadline_does_not_kill_a_batch_that_is_nearly_done(make: Make) -> None:
    tool = make()
    await tool.ready()
    with pytest.raises(EnvironmentFailure):
        await tool.call({"sleep": 0.3}, deadline_s=0.1)
    assert (await tool.call({}, deadline_s=5))["n"] == 1
    assert tool.starts == 1


async def test_a_tool_that_cannot_start_says_why_and_is_not_tried_by_every_call(
    make: Make,
) -> None:
    tool = make({"broken": True})
    for _ in range(2):
        with pytest.raises(EnvironmentFailure, match="cannot start: RuntimeError: no index here"):
            await tool.call({}, deadline_s=5)
    assert tool.starts == 1


async def test_close_ends_the_process_and_fails_who_waits(make: Make) -> None:
    tool = make()
    await tool.ready()
    pid = tool.pid
    assert pid is not None
    call = asyncio.create_task(tool.call({"sleep": 5}, deadline_s=30))
    await asyncio.sleep(0.1)
    await tool.aclose()
    with pytest.raises(EnvironmentFailure, match="closed"):
        await call
    assert not psutil.pid_exists(pid)


async def test_close_during_the_start_fails_who_waits(make: Make) -> None:
    tool = make()
    call = asyncio.create_task(tool.call({}, deadline_s=30))
    await asyncio.sleep(0.02)
    await tool.aclose()
    with pytest.raises(EnvironmentFailure, match="closed"):
        await call


async def test_equal_configs_share_a_process_until_the_last_lets_go(make: Make) -> None:
    one, two = (lease("echo_tool:Echo", {"a": 1}, name="echo") for _ in range(2))
    other = lease("echo_tool:Echo", {"a": 2}, name="echo")
    assert one.tool is two.tool is not other.tool
    assert (await one.tool.call({}, deadline_s=5))["n"] == 1
    await one.aclose()
    await one.aclose()
    assert (await two.tool.call({}, deadline_s=5))["n"] == 1
    pid = two.tool.pid
    assert pid is not None
    await two.aclose()
    await other.aclose()
    assert not psutil.pid_exists(pid)


DAEMON = """
import os, time
class Daemon:
    # It leaves a daemon behind, in a session of its own and with nothing open.
    def __init__(self, config):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(writer, str(os.getpid()).encode())
                os.closerange(0, 256)
                time.sleep(600)
            os._exit(0)
        os.wait()
        self.daemon = int(os.read(reader, 32))
    def answer(self, batch):
        while batch[0].get("busy"):
            pass
        return [self.daemon for r in batch]
"""
WITH_DAEMON = """
import asyncio
from plait.envs.tools.process import ToolProcess
async def main():
    tool = ToolProcess(target="daemon_tool:Daemon", config={}, name="daemon")
    print(await tool.call({}, deadline_s=60), tool.pid, flush=True)
    await tool.call({"busy": True}, deadline_s=60)
asyncio.run(main())
"""


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_close_ends_what_the_tool_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "daemon_tool.py").write_text(DAEMON)
    monkeypatch.syspath_prepend(str(tmp_path))
    tool = ToolProcess(target="daemon_tool:Daemon", config={}, name="daemon")
    daemon = await tool.call({}, deadline_s=60)
    assert lives(daemon)
    await tool.aclose()
    assert not lives(daemon)


def test_the_tool_and_what_it_has_started_end_when_its_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "daemon_tool.py").write_text(DAEMON)
    path = os.pathsep.join([str(tmp_path), *(p for p in sys.path if p)])
    with subprocess.Popen(
        [sys.executable, "-c", WITH_DAEMON],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert all(map(lives, pids))
        parent.kill()
    until = time.monotonic() + 5
    while any(map(lives, pids)):
        assert time.monotonic() < until, "the tool outlived its parent"
        time.sleep(0.05)
