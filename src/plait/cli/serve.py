"""``plait serve``: its flags, as a plan of what to serve."""

from collections.abc import Sequence
from pathlib import Path

from plait.core.errors import ConfigError
from plait.policies.registry import DEFAULT, make
from plait.runtime.settings import Settings


def serve_command(
    directory: Path,
    models: Sequence[str],
    *,
    bind: str,
    database: str | None,
    policy: str | None,
    asked: Settings,
    allow_code: bool,
) -> int:
    """Serve until SIGTERM or Ctrl-C; the exit code."""
    try:
        from plait.service.serve import Plan, run
    except ImportError as error:
        raise ConfigError(f"plait serve needs {error.name}: pip install 'plait[serve]'") from error
    make(policy or DEFAULT)  # refuses what is none, before anything is opened
    asked.check()  # else a model would be refused, when it is first asked for
    return run(
        Plan(
            directory=directory,
            models=tuple(models) or ("tiny",),
            bind=bind,
            database=database,
            settings=asked,
            policy=policy or DEFAULT,
            allow_code=allow_code,
        )
    )
