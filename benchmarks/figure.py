"""Figure: a named measurement with a bar, and the line it leaves behind."""

import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a measurement found. ``ok`` decides where one number cannot (several bars at once)."""

    value: float
    ok: bool
    spread: float = 0.0
    """Half the range of the repeats over their median; 0 where there was one."""
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One named figure."""

    name: str
    what: str
    at_least: float | None
    """The bar; ``None`` where the issue asks for the number alone. Bars of the form "at most" are
    given as bar ÷ measured, at least 1."""
    minutes: float
    """How long it takes on two cores."""
    measure: Callable[[], Measured]


def run_figure(figure: Figure) -> bool:
    """Measure, print one JSON line, append it to ``results/NAME.jsonl``; whether the bar is met."""
    start = time.perf_counter()
    measured = figure.measure()
    line = {
        "name": figure.name,
        "what": figure.what,
        "at_least": figure.at_least,
        **asdict(measured),
        "machine": {"cores": os.cpu_count(), "arch": platform.machine(), "load": os.getloadavg()},
        "versions": {
            "python": platform.python_version(),
            **{p: _version(p) for p in ("plait", "torch", "transformers")},
        },
        "seconds": round(time.perf_counter() - start, 1),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    text = json.dumps(line)
    print(text, flush=True)
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{figure.name}.jsonl").open("a", encoding="utf-8") as file:
        file.write(text + "\n")
    return measured.ok


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
