"""One live process per launch directory; the dead hold nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plait.core.errors import StoreError
from plait.store.lock import LaunchLock

HOLDER = """
import sys, time
from plait.store.lock import LaunchLock
lock = LaunchLock(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_owner_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    with (
        LaunchLock(tmp_path / "launch"),
        pytest.raises(StoreError, match=f"in use by process {os.getpid()}:"),
    ):
        LaunchLock(tmp_path / "launch")
    LaunchLock(tmp_path / "launch").close()


def test_a_killed_owner_holds_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(p for p in sys.path if p)},
    )
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == "held\n"
        with pytest.raises(StoreError, match=f"process {process.pid}:"):
            LaunchLock(tmp_path)
        process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    LaunchLock(tmp_path).close()


def test_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="another launch directory"):
        LaunchLock(tmp_path / "file")


def test_a_disk_that_takes_no_owner_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to("/dev/full")
    with pytest.raises(StoreError, match="cannot write"):
        LaunchLock(tmp_path)
