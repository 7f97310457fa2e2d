"""Printing never fails, and fills no disk."""

import subprocess
import sys
from pathlib import Path

CODE = """
import os, sys
from plait.cluster.limits import limit_files
from plait.envs.apart.printing import bounded_prints
limit_files(1000)
bounded_prints()
print("first")
for _ in range(1000):
    print("x" * 99)
    print("y" * 99, file=sys.stderr)
try:
    os.write(1, b"straight")
except OSError as error:
    os._exit(42 if error.errno == 27 else 1)
"""


def test_a_full_log_takes_no_more(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("ab") as out:
        ended = subprocess.run(
            [sys.executable, "-c", CODE], stdout=out, stderr=out, timeout=60, check=False
        )
    assert ended.returncode == 42, "what does not print is told so"
    assert log.stat().st_size == 1000
    assert log.read_text().startswith("first\nxxx")
