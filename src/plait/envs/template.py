"""Template: ``{column}`` in a text replaced by that column's value.

Only the known names are replaced, so that ``\\boxed{}`` and JSON in a template stay as they are.
"""

import re
from collections.abc import Mapping
from typing import Any

from plait.core.errors import ConfigError
from plait.sections import nearest

FIELD = re.compile(r"\{(\w+)\}")


def fill(template: str, values: Mapping[str, Any]) -> str:
    """The text with each ``{name}`` of ``values`` replaced."""
    return FIELD.sub(lambda m: str(values[m[1]]) if m[1] in values else m[0], template)


def check_template(template: str, needed: str, where: str) -> None:
    """ConfigError if ``template`` never shows ``{needed}``: nobody would see the problem."""
    names = FIELD.findall(template)
    if needed not in names:
        hint = nearest(needed, names) if names else "it names no column at all"
        raise ConfigError(f"{where}: template must contain {{{needed}}} ({hint})")
