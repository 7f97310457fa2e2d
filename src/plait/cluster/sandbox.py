"""Sandbox: what stands between a tenant's code and the machine: bubblewrap.

Inside there is Python with its packages, plait itself and the code's own files, all read-only, and
an empty ``/tmp`` of ``SCRATCH_BYTES``. There is no network, no other process, no environment of the
server's, no file of another tenant and none of the state directory. Memory and time are bounded by
whoever starts it. Where bubblewrap is not installed nothing of a tenant's runs.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import plait
from plait.core.errors import ConfigError

PROGRAM = "bwrap"
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime")
"""What a Python needs of a system; what is not there is left out."""
KEPT = ("LANG", "LC_ALL")
"""Variables that are handed in."""
SCRATCH_BYTES = 2**30
"""Of ``/tmp``, and of shared memory: both are the machine's memory."""


def available() -> bool:
    """True where bubblewrap is installed."""
    return shutil.which(PROGRAM) is not None


def wrapped(reads: Sequence[str], variables: Sequence[tuple[str, str]]) -> list[str]:
    """The command before a process's own, which sees the files and directories ``reads``;
    ConfigError where there is no bubblewrap."""
    program = shutil.which(PROGRAM)
    if program is None:
        raise ConfigError(
            "code of a job runs in bubblewrap alone, which is not installed here: install it "
            "(package bubblewrap), or use what is registered"
        )
    inside = dict.fromkeys((*SYSTEM, *_python(), str(Path(plait.__file__).parents[1]), *reads))
    command = [program, "--unshare-all", "--die-with-parent", "--clearenv"]
    command += ["--proc", "/proc", "--dev", "/dev"]
    for place in ("/tmp", "/dev/shm"):
        command += ["--size", str(SCRATCH_BYTES), "--tmpfs", place]
    for place in inside:
        command += ["--ro-bind-try", place, place]
    for place in ("/dev", "/"):
        command += ["--remount-ro", place]
    handed = [(name, os.environ[name]) for name in KEPT if name in os.environ]
    for name, value in (("HOME", "/tmp"), ("PATH", "/usr/bin:/bin"), *handed, *variables):
        command += ["--setenv", name, value]
    return [*command, "--chdir", "/tmp", "--"]


def _python() -> list[str]:
    """Where this interpreter and its packages lie."""
    places = [sys.prefix, sys.base_prefix, os.path.realpath(sys.executable)]
    places += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    return [place for place in dict.fromkeys(places) if os.path.exists(place)]
