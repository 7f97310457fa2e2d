"""The command answers ``--help`` at once: nothing heavy is imported before a verb runs."""

import json
import os
import resource
import subprocess
import sys

import pytest
import typer.main

from plait.cli.main import app

HELP_S = 0.2
"""Of processor time, which is what it takes where nothing else runs: it reads a few files and waits
for nobody."""
TRIES = 15
"""The fastest counts."""
BUSY = 2.0
"""Load per core beyond which even processor time says nothing: caches are cold, threads share a
core's units."""

PACKAGES = {
    "_distutils_hack",
    "annotated_doc",
    "plait",
    "shellingham",
    "typer",
}
"""All that may be imported, besides the standard library: the command's parser, and what that
imports by itself."""
OURS = {"plait", "plait.cli", "plait.core", "plait.core.errors"}
"""Beside modules of the command."""
MODULES = 165
"""Of any origin: 154 are there with typer 0.28."""
PROGRAM = """
import json, sys
from plait.cli.entry import main
try: main()
except SystemExit as end: assert not end.code, end.code
print(json.dumps(sorted(sys.modules.keys())))
"""

GROUP = typer.main.get_command(app)
VERBS = sorted(
    (name, *([below] if below else []))
    for name, command in GROUP.commands.items()  # type: ignore[attr-defined]
    for below in ("", *getattr(command, "commands", {}))
)


def children_s() -> float:
    """Processor time of the processes that this one has started, and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("verb", [(), *VERBS], ids=" ".join)
def test_help_is_there_at_once(verb: tuple[str, ...]) -> None:
    if os.getloadavg()[0] > BUSY * (os.cpu_count() or 1):
        pytest.skip("the machine is busy")
    command = [sys.executable, "-c", "from plait.cli.entry import main; main()", *verb, "--help"]
    fastest = float("inf")
    for _ in range(TRIES):
        before = children_s()
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        fastest = min(fastest, children_s() - before)
        assert done.returncode == 0, done.stderr
        assert "Usage:" in done.stdout
        if fastest < HELP_S:
            return
    pytest.fail(f"took {fastest * 1000:.0f} ms at best")


@pytest.mark.parametrize("verb", [(), *VERBS], ids=" ".join)
def test_help_imports_little(verb: tuple[str, ...]) -> None:
    """Which is what keeps it fast, on a machine however busy."""
    command = [sys.executable, "-c", PROGRAM, *verb, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout
    modules: list[str] = json.loads(done.stdout.splitlines()[-1])
    packages = {m.partition(".")[0] for m in modules} - sys.stdlib_module_names - {"__main__"}
    packages = {p for p in packages if not p.startswith("_sysconfigdata_")}
    assert packages <= PACKAGES
    ours = {m for m in modules if m.partition(".")[0] == "plait"}
    assert {m for m in ours if not m.startswith("plait.cli.")} <= OURS
    assert len(modules) <= MODULES


def test_help_imports_nothing_heavy() -> None:
    heavy = ("httpx", "numpy", "rich.markdown", "sqlalchemy", "torch", "yaml")
    program = (
        "import sys\nfrom plait.cli.entry import main\nsys.argv = ['plait', 'jobs', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
