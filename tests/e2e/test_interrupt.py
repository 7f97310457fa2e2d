"""Ctrl-C before a launch has anything to resume: one line, exit code 130, nothing left."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from programs import assert_nobody_left, program, run

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

WHILE_CHECKING = """
import asyncio, os, signal

class Env:
    stop = ()
    async def start(self):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)

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


def test_while_the_jobs_are_checked(tmp_path: Path) -> None:
    (tmp_path / "interrupts.py").write_text(WHILE_CHECKING)
    job = {"environment": {"name": "interrupts:Source"}, "steps": 1}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    code, out, err = run("run", tmp_path / "job.yaml", "--dir", tmp_path / "out")
    assert (code, out, err) == (130, "", "interrupted\n")
    assert not (tmp_path / "out").exists()


def test_while_the_workers_start(tmp_path: Path) -> None:
    job = {"environment": {"name": "tiny-sum"}, "steps": 1, "limits": {"max_tokens": 8}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    out_dir = tmp_path / "out"
    with program("run", tmp_path / "job.yaml", "--dir", out_dir) as running:
        running.until((out_dir / "launch.json").exists)
        running.signal(signal.SIGINT)
        code, out, err = running.wait()
    assert code == 130
    assert out.splitlines()[:2] == [f"launch directory: {out_dir}", "starting workers"]
    assert err == f"interrupted: go on with  plait run --resume {out_dir}\n"
    assert_nobody_left(out_dir)
