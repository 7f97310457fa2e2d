"""Info: ``launch.json`` read back."""

import json
from typing import Any

from plait.core.errors import ConfigError
from plait.obs import shapes
from plait.obs.layout import LaunchLayout

_DAMAGED = "put it back as it was, or start anew in another directory"


def read_info(layout: LaunchLayout) -> dict[str, Any]:
    """``launch.json`` as it stands; empty if there is none, ConfigError if it cannot be used."""
    if not layout.info.is_file():
        return {}
    try:
        found = json.loads(layout.info.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {layout.info} ({error}): {_DAMAGED}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{layout.info} does not describe a launch: {_DAMAGED}")
    if (why := shapes.info(found)) is not None:
        raise ConfigError(f"{layout.info} {why}: {_DAMAGED}")
    return found
