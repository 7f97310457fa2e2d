"""About: what a launch says of itself in ``launch.json`` before it has any jobs."""

import platform
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from plait.obs.info import read_info
from plait.obs.layout import LaunchLayout
from plait.policies.protocol import Sharing
from plait.runtime.settings import Settings


def about(
    layout: LaunchLayout,
    *,
    sharing: Sharing,
    model: str,
    settings: Settings,
    alone: bool,
    wall: Callable[[], float],
) -> dict[str, Any]:
    """Fields of ``LaunchInfo``; what an earlier life of the launch began stays. ``alone``: its jobs
    are named there, and in no other store."""
    before = read_info(layout)
    return {
        "policy": sharing.name,
        "policy_options": sharing.options,
        "model": model,
        "started_at": before.get("started_at", wall()),
        "jobs": tuple(before.get("jobs", ())) if alone else (),
        "versions": {"python": platform.python_version(), **_versions("plait", "torch")},
        "machine": {
            "cores": settings.cores,
            "memory_bytes": psutil.virtual_memory().total,
            "device": platform.processor() or platform.machine(),
        },
        "peak_flops": 0.0,
        "settings": asdict(settings),
    }


def _versions(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
