"""Palette: one colour per job, the same in every picture, and the tones of it that mean a stage.

Okabe and Ito's colours, which colour-blind readers tell apart too. Colours are ``#rrggbb`` or RGB
in 0..1.
"""

from collections.abc import Sequence

RGB = tuple[float, float, float]

PALETTE = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#8C6D1F",
    "#6F4FA0",
)
"""Black and the yellow that is too pale for lines are replaced; the ninth job begins again."""

GREY = "#5f6b76"
GRID = "#e3e6e9"
NO_JOB = "#b8bfc6"
"""Work that was nobody's in particular (loading weights)."""

STAGE_TONES = {
    "rollout": 1.0,
    "evaluate": 1.0,
    "train": 0.0,
    "optim": 0.0,
    "publish": 0.0,
    "reward": 0.45,
    "tool": 0.45,
    "reference": 0.45,
}
"""1: the job's colour; 0: the same darkened; between: paled. Other stages are waits."""


def job_colours(names: Sequence[str]) -> dict[str, str]:
    """Colour of each job, by its place in the order of joining."""
    return {name: PALETTE[n % len(PALETTE)] for n, name in enumerate(names)}


def tone(colour: str, amount: float) -> RGB:
    """A stage's tone of a job's colour."""
    if amount >= 1.0:
        return _rgb(colour)
    return pale(colour, amount) if amount > 0 else _dark(colour)


def pale(colour: str, amount: float) -> RGB:
    """Mixed with white: ``amount`` of the colour stays."""
    r, g, b = _rgb(colour)
    return 1 - amount * (1 - r), 1 - amount * (1 - g), 1 - amount * (1 - b)


def _dark(colour: str) -> RGB:
    r, g, b = _rgb(colour)
    return 0.5 * r, 0.5 * g, 0.5 * b


def _rgb(colour: str) -> RGB:
    r, g, b = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    return r, g, b
