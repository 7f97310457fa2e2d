"""The command answers ``--help`` at once: nothing heavy is imported before a verb runs."""

import subprocess
import sys
import time

import pytest
import typer.main

from plait.cli.main import app

HELP_S = 0.2
TRIES = 15
"""The machine may be busy with other things: the fastest of these counts."""

GROUP = typer.main.get_command(app)
VERBS = sorted(
    (name, *([below] if below else []))
    for name, command in GROUP.commands.items()  # type: ignore[attr-defined]
    for below in ("", *getattr(command, "commands", {}))
)


@pytest.mark.parametrize("verb", [(), *VERBS], ids=" ".join)
def test_help_is_there_at_once(verb: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", "from plait.cli.entry import main; main()", *verb, "--help"]
    fastest = float("inf")
    for _ in range(TRIES):
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        fastest = min(fastest, time.perf_counter() - start)
        assert done.returncode == 0, done.stderr
        assert "Usage:" in done.stdout
        if fastest < HELP_S:
            return
    pytest.fail(f"took {fastest * 1000:.0f} ms at best")


def test_help_imports_nothing_heavy() -> None:
    heavy = ("httpx", "numpy", "rich.markdown", "sqlalchemy", "torch", "yaml")
    program = (
        "import sys\nfrom plait.cli.entry import main\nsys.argv = ['plait', 'jobs', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
