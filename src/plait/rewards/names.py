"""Names: from the name of a reward to the ``module:function`` that computes it."""

import difflib
import re
from dataclasses import dataclass

from plait.core.errors import ConfigError

TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardName:
    """One reward that a job can name. ``one_by_one``: samples are independent, so each is a call
    of its own and a hard one fails alone."""

    name: str
    target: str
    description: str
    one_by_one: bool = True


KNOWN = (
    RewardName(
        name="math-verify",
        target="plait.rewards.mathematics:math_verify",
        description="equal to the `answer` (or `solution`) column as mathematics",
    ),
    RewardName(
        name="exact",
        target="plait.rewards.text:exact",
        description="the completion is the `answer` column, spaces at its ends aside",
    ),
    RewardName(
        name="contains",
        target="plait.rewards.text:contains",
        description="the `answer` column occurs in the completion, letter case aside",
    ),
)
JUDGE = "judge"
"""Not a function but a model behind a URL: see ``judge``."""


def find_reward(name: str) -> RewardName:
    """The built-in of that name, or the user's ``module:function``; ConfigError otherwise."""
    for known in KNOWN:
        if known.name == name:
            return known
    if TARGET.fullmatch(name):
        # A user's function may compare the samples of a group: it gets all of them in one call.
        return RewardName(name=name, target=name, description="", one_by_one=False)
    names = [known.name for known in KNOWN] + [JUDGE]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
    raise ConfigError(f"there is no reward {name}: {hint} (your own: module:function)")
