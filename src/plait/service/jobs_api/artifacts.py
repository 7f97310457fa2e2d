"""Artifacts: a job's files that its owner may download.

Only what is listed can be fetched, so a path leads nowhere else.
"""

from pathlib import Path

from plait.core.errors import NotFound
from plait.obs.layout import JobLayout
from plait.service.jobs_api.views import ArtifactView


def listed(layout: JobLayout) -> dict[str, Path]:
    """Path on the wire and file: the adapter (once the job is done), samples, metrics, the resolved
    configuration, what an environment of its owner's has printed."""
    files = [layout.config, layout.metrics, layout.samples, layout.environment_log]
    if layout.adapter.is_dir():
        files += sorted(layout.adapter.iterdir())
    return {
        file.relative_to(layout.root).as_posix(): file
        for file in files
        if file.is_file() and not file.is_symlink()
    }


def artifacts(layout: JobLayout) -> list[ArtifactView]:
    """All of them, with sizes."""
    return [
        ArtifactView(path=path, size_bytes=file.stat().st_size)
        for path, file in listed(layout).items()
    ]


def artifact(layout: JobLayout, path: str) -> Path:
    """The file of a listed path; NotFound for any other."""
    try:
        return listed(layout)[path]
    except KeyError:
        raise NotFound(f"there is no artifact {path[:120]!r}: list the job's artifacts") from None
