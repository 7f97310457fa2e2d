"""Console: what verbs print, for people and for programs.

A pipe or a file has no width; rich would assume 80 columns and cut headings to a letter. So tables
are as wide as they need to be where no terminal says how wide that is. And what is shown is what
people have named: to rich, ``:train:`` in the middle of an id is a picture and ``[x]`` a colour.
"""

from typing import Any

from rich.console import Console, RenderableType
from rich.measure import Measurement

from plait.obs.jsonl import dumps

UNBOUNDED = 10_000
"""Columns that no table needs."""


def show(renderable: RenderableType) -> None:
    """Print for people: in the terminal's width, or whole."""
    plain: Any = {"emoji": False, "markup": False}
    console = Console(**plain)
    if not console.is_terminal:
        options = console.options.update(max_width=UNBOUNDED)
        needed = Measurement.get(console, options, renderable).maximum
        console = Console(width=max(console.width, needed), **plain)
    console.print(renderable)


def show_json(value: object) -> None:
    """Print for programs: one line of JSON, null where a number is not finite."""
    print(dumps(value))
