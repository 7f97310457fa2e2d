"""Device: where a launch computes, and in which numbers. A pure choice; who looks is the caller.

``auto`` is the first CUDA device and bf16 where there is one, else the CPU and fp32, which is also
what deterministic mode is made for.
"""

import re
from collections.abc import Callable, Sequence

from plait.cluster.devices import CudaDevice
from plait.core.errors import ConfigError

DTYPE_BYTES = {"fp32": 4, "bf16": 2}


def choose_device(
    device: str,
    dtype: str,
    *,
    deterministic: bool,
    look: Callable[[], Sequence[CudaDevice]],
) -> tuple[str, str, CudaDevice | None]:
    """Device (``cpu`` or ``cuda:N``), dtype (``fp32`` or ``bf16``) and what ``look`` said of it.

    ConfigError if one is unknown or not there.
    """
    wanted = re.fullmatch(r"auto|cpu|cuda(?::(\d{1,3}))?", device)
    if wanted is None:
        raise ConfigError(f"device {device!r} is unknown: choose auto, cpu, cuda or cuda:N")
    if dtype not in ("auto", *DTYPE_BYTES):
        raise ConfigError(f"dtype {dtype!r} is unknown: choose auto, fp32 or bf16")
    if deterministic and (device.startswith("cuda") or dtype == "bf16"):
        raise ConfigError(
            f"deterministic mode is for fp32 on a CPU, not {dtype} on {device}: leave one of them "
            "out"
        )
    found = () if device == "cpu" or deterministic else look()
    if device in ("cpu", "auto") and not found:
        return "cpu", "fp32" if dtype == "auto" else dtype, None
    number = int(wanted[1] or 0)
    if number >= len(found):
        there = f"torch finds {len(found)} (cuda:0 …)" if found else "torch finds none here"
        raise ConfigError(f"device {device} is not there: {there}; choose another, or --device cpu")
    return f"cuda:{number}", "bf16" if dtype == "auto" else dtype, found[number]
