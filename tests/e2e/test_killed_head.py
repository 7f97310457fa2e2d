"""``kill -9`` of the head in the middle of everything: no process of the launch survives it."""

import os
import signal
import time
import uuid
from pathlib import Path

import psutil
import pytest
import yaml
from programs import GONE_S, program

pytestmark = pytest.mark.e2e

MARK = "PLAIT_TEST_LAUNCH"
CODE = """
import os, time
from plait.envs.single import Problem, SingleTurn
from plait.envs.tools.shared import lease

def leave_daemon(name):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 256)
            open(name, "w").close()
            time.sleep(600)
        os._exit(0)
    os.wait()

class Tool:
    def __init__(self, config): pass
    def answer(self, batch):
        leave_daemon("tool")
        return [1.0 for _ in batch]

class Asking(SingleTurn):
    def generate(self, rng): return Problem(prompt=str(rng.random()))
    async def grade(self, problem, completion):
        if not hasattr(self, "lease"):
            self.lease = lease("everything:Tool", {}, name="ours")
        return await self.lease.tool.call({}, deadline_s=60)
    async def aclose(self):
        if hasattr(self, "lease"): await self.lease.aclose()

def slow(completions, **_):
    leave_daemon("reward")
    while True:
        pass
"""


def of_launch(mark: str) -> list[psutil.Process]:
    """Every process that descends from the program, by what its environment says."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def test_nobody_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    path = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "everything.py").write_text(CODE)
    job = {
        "environment": {"name": "everything:Asking"},
        "rewards": [{"function": "everything:slow", "deadline_s": 120}],
        "limits": {"max_tokens": 8, "rollout_deadline_s": 120},
        "steps": 9,
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    with program("run", "job.yaml", "--dir", "out") as running:
        running.until(lambda: (tmp_path / "tool").exists() and (tmp_path / "reward").exists())
        # Head, two workers, keepers of the tool and of a grader, these two, and their daemons.
        assert len(of_launch(mark)) >= 9
        running.signal(signal.SIGKILL)
        running.wait()
    deadline = time.monotonic() + GONE_S
    while left := [process for process in of_launch(mark) if process.pid != os.getpid()]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.05)
