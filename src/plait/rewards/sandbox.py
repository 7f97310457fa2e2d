"""Sandbox: what stands between a tenant's reward function and the machine: bubblewrap.

Inside there is Python with its packages, plait itself and the function's own files, all read-only,
and an empty ``/tmp``. There is no network, no other process, no environment of the server's, no
file of another tenant and none of the state directory. Memory and time are bounded by the pool as
for every grader. Where bubblewrap is not installed nothing of a tenant's runs.
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


def available() -> bool:
    """True where bubblewrap is installed."""
    return shutil.which(PROGRAM) is not None


def wrapped(sys_path: Sequence[str], variables: Sequence[tuple[str, str]]) -> list[str]:
    """The command before a grader's own; ConfigError where there is no bubblewrap."""
    program = shutil.which(PROGRAM)
    if program is None:
        raise ConfigError(
            "code of a job runs in bubblewrap alone, which is not installed here: install it "
            "(package bubblewrap), or use a registered reward"
        )
    inside = dict.fromkeys((*SYSTEM, *_python(), str(Path(plait.__file__).parents[1]), *sys_path))
    command = [program, "--unshare-all", "--die-with-parent", "--clearenv"]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for place in inside:
        command += ["--ro-bind-try", place, place]
    handed = [(name, os.environ[name]) for name in KEPT if name in os.environ]
    for name, value in (("HOME", "/tmp"), ("PATH", "/usr/bin:/bin"), *handed, *variables):
        command += ["--setenv", name, value]
    return [*command, "--chdir", "/tmp", "--"]


def _python() -> list[str]:
    """Where this interpreter and its packages lie."""
    places = [sys.prefix, sys.base_prefix, os.path.realpath(sys.executable)]
    places += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    return [place for place in dict.fromkeys(places) if os.path.exists(place)]
