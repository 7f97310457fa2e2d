"""Ctrl-C before a launch has anything to resume: one line, exit code 130, nothing left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml
from programs import START_S, program, run

pytestmark = pytest.mark.e2e

WHILE_IMPORTING = """
import sys

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
sys.argv = ["plait", "run", "jobs.yaml"]
from plait.cli.entry import main
main()
"""

TIMER_S = 100
WHILE_CHECKING = f"""
TIMER_S = {TIMER_S}
import asyncio, os, signal, threading, time

def later():
    time.sleep(0.3)
    SEND

class Env:
    stop = ()
    async def start(self):
        threading.Thread(target=later).start()
        await asyncio.sleep(TIMER_S)

class Source:
    name, same_prompt, max_turns = "interrupts", True, 1
    def __init__(self, config, tokenizer, seed): pass
    def make(self, index, split): return Env()
    async def aclose(self): pass
"""


@pytest.mark.parametrize("module", ["typer", "plait.cli.run"])
def test_while_the_command_is_imported(module: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WHILE_IMPORTING.format(module=module)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    "send",
    [
        "os.kill(os.getpid(), signal.SIGINT)",
        "signal.pthread_kill(threading.get_ident(), signal.SIGINT)",
        "signal.pthread_kill(threading.get_ident(), signal.SIGTERM)",
    ],
)
def test_while_the_jobs_are_checked(send: str, tmp_path: Path) -> None:
    """The main thread waits for a timer then; the kernel may give a signal to any thread."""
    (tmp_path / "interrupts.py").write_text(WHILE_CHECKING.replace("SEND", send))
    job = {"environment": {"name": "interrupts:Source"}, "steps": 1}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    began_s = time.monotonic()
    code, out, err = run("run", tmp_path / "job.yaml", "--dir", tmp_path / "out")
    assert (code, out, err) == (130, "", "interrupted\n")
    assert time.monotonic() - began_s < TIMER_S / 2
    assert not (tmp_path / "out").exists()


def test_while_the_workers_start(tmp_path: Path) -> None:
    job = {"environment": {"name": "tiny-sum"}, "steps": 1, "limits": {"max_tokens": 8}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    out_dir = tmp_path / "out"
    with program("run", tmp_path / "job.yaml", "--dir", out_dir) as running:
        running.until(lambda: len(running.started()) == 2)
        workers = running.started()
        running.signal(signal.SIGINT)
        code, out, err = running.wait()
    assert code == 130
    assert out.splitlines()[:2] == [f"launch directory: {out_dir}", "starting workers"]
    assert err == f"interrupted: go on with  plait run --resume {out_dir}\n"
    assert not any(map(psutil.Process.is_running, workers))
    assert (out_dir / "launch.json").exists()


STUCK = """
import time
from pathlib import Path
from plait.engines.scripted.build import build as build_scripted
from plait.envs.single import Problem, SingleTurn

class Odd(SingleTurn):
    def generate(self, rng): return Problem(prompt=str(rng.random()))
    def score(self, problem, completion): return float(sum(map(ord, completion)) % 2)

def build(config):
    place = Path(__file__).parent
    if not (place / "go").exists():
        (place / "stuck").touch()
        time.sleep(600)
    return build_scripted(config)
"""
RUN = """
import sys
from pathlib import Path
from plait.cli.run import run_command
from plait.runtime.settings import Settings

files, resume = ([], Path("out")) if "--resume" in sys.argv else ([Path("job.yaml")], None)
settings = Settings(engine="stuck_engine:build", kv_blocks=256, cores=2)
given = {"policy": None, "options": (), "as_json": False, "asked": settings}
sys.exit(run_command(files, directory=None if resume else Path("out"), resume=resume, **given))
"""


def test_workers_that_take_long_to_start_are_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "stuck_engine.py").write_text(STUCK)
    job = {"environment": {"name": "stuck_engine:Odd"}, "steps": 1, "limits": {"max_tokens": 8}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    path = os.pathsep.join([str(tmp_path), *(p for p in sys.path if p)])

    def begin(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", RUN, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    with begin() as running:
        deadline = time.monotonic() + START_S
        while not (tmp_path / "stuck").exists():
            assert time.monotonic() < deadline, "no worker began to start"
            assert running.poll() is None, running.communicate()
            time.sleep(0.01)
        workers = psutil.Process(running.pid).children(recursive=True)
        assert len(workers) == 2
        asked = time.monotonic()
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=START_S)
        took = time.monotonic() - asked
    assert running.returncode == 130
    assert err == "interrupted: go on with  plait run --resume out\n"
    assert took < 4, "it waited for the workers"
    assert not any(map(psutil.Process.is_running, workers))
    (tmp_path / "go").touch()
    with begin("--resume") as resumed:
        out, err = resumed.communicate(timeout=START_S)
    assert resumed.returncode == 0, (out, err)
    assert "job: done: finished 1 steps" in out
