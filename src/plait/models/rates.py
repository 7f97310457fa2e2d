"""Rates: measured speeds of a model on this machine, kept in the cache. Never imports torch."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
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
    file = cache_root() / "rates" / f"{model_dir.name}-{cores}-{METHOD}{where}.json"
    if not file.is_file():
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
        except subprocess.CalledProcessError as error:
            last = error.stderr.strip().splitlines()[-1:]
            raise EngineError(f"cannot measure {model_dir.name}: {' '.join(last)}") from error
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(done.stdout.strip().splitlines()[-1])
    raw = json.loads(file.read_text())
    return Rates(
        decode={int(k): v for k, v in raw["decode"].items()},
        prefill=raw["prefill"],
        train=raw["train"],
    )
