"""Devices: the CUDA devices of this machine, asked of torch in a process of its own.

The head never loads torch. Where there is no driver there is nothing to ask, and nothing is.
"""

import ctypes
import functools
import json
import subprocess
import sys
from dataclasses import dataclass

from plait.core.errors import EngineError

DRIVER = "libcuda.so.1"
TIMEOUT_S = 120.0
"""Loading torch and opening every device of a large machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaDevice:
    """One device, and what of its memory is free."""

    name: str
    free_bytes: int


@functools.cache
def cuda_devices() -> tuple[CudaDevice, ...]:
    """In torch's order, as they are when first asked for; none without a driver or with a torch
    that has no CUDA. EngineError if torch cannot say."""
    if not _has_driver():
        return ()
    command = [sys.executable, "-m", "plait.engines.torch.devices"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
        found = json.loads(done.stdout.strip().splitlines()[-1])
        return tuple(CudaDevice(**device) for device in found)
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        raise EngineError(
            f"torch cannot list the CUDA devices ({' '.join(said)}): give --device cpu to do "
            "without"
        ) from error


def _has_driver() -> bool:
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return False
    return True
