"""Rates: measured speeds of a model on this machine, kept in the cache. Never imports torch."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from plait.core.errors import EngineError
from plait.models.cache import cache_root

METHOD = "best-step"
"""Part of the cached file's name: what was measured in another way is measured again."""

TIMEOUT_S = 600.0
"""The first use of a model converts and fuses its weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Tokens per second with all cores."""

    decode: dict[int, float]
    """By batch size."""
    prefill: float
    train: float

    def decode_at(self, batch: float) -> float:
        """Decode rate at a batch size: linear between what was measured, flat beyond."""
        points = sorted(self.decode.items())
        below = [p for p in points if p[0] <= batch] or points[:1]
        above = [p for p in points if p[0] >= batch] or points[-1:]
        (b0, r0), (b1, r1) = below[-1], above[0]
        return r0 if b1 == b0 else r0 + (r1 - r0) * (batch - b0) / (b1 - b0)


def measured_rates(
    model_dir: Path,
    cores: int,
    env: Mapping[str, str],
    *,
    device: str = "cpu",
    dtype: str = "fp32",
) -> Rates:
    """Rates of a model, measured once per machine, number of cores, device and dtype, in a worker's
    ``env``."""
    where = "" if (device, dtype) == ("cpu", "fp32") else f"-{device.replace(':', '')}-{dtype}"
    file: Path = cache_root() / "rates" / f"{model_dir.name}-{cores}-{METHOD}{where}.json"
    if (known := _read(file)) is None:
        command = [
            sys.executable,
            "-m",
            "plait.engines.torch.calibrate",
            str(model_dir),
            str(cores),
            device,
            dtype,
        ]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=True,
                env={**os.environ, **env},
            )
        except subprocess.TimeoutExpired as error:
            raise EngineError(
                f"measuring {model_dir.name} took more than {TIMEOUT_S:.0f} s: try an idle machine"
            ) from error
        except subprocess.CalledProcessError as error:
            last = error.stderr.strip().splitlines()[-1:]
            raise EngineError(f"cannot measure {model_dir.name}: {' '.join(last)}") from error
        file.parent.mkdir(parents=True, exist_ok=True)
        half = file.with_name(f"{file.name}.{os.getpid()}")
        half.write_text((done.stdout.strip().splitlines() or [""])[-1])
        half.replace(file)
        if (known := _read(file)) is None:
            raise EngineError(f"measuring {model_dir.name} gave no rates: run it again")
    return known


def _read(file: Path) -> Rates | None:
    """What is known; nothing if the file is not there or was torn, so that it is measured again."""
    try:
        raw = json.loads(file.read_text())
        found = Rates(
            decode={int(rows): float(rate) for rows, rate in raw["decode"].items()},
            prefill=float(raw["prefill"]),
            train=float(raw["train"]),
        )
        rates = [*found.decode.values(), found.prefill, found.train]
        right = found.decode and all(isfinite(rate) and rate > 0 for rate in rates)
        return found if right else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
