"""Split: which problems are held out, and the random numbers of each, by index alone.

A problem belongs to ``eval`` or ``train`` by a hash of its text, whatever the seed and index that
led to it: what is held out under one seed is trained on under none. Generators draw until a problem
of the wanted side comes up.
"""

import hashlib
import random
from collections.abc import Callable
from typing import TypeVar

from plait.core.errors import EnvironmentFailure

TRAIN, EVAL = "train", "eval"
EVAL_SHARE = 0.2
"""Share of all possible problems that is held out: a fifth costs little training data and finds a
held-out problem in five draws on average."""
MAX_DRAWS = 256
"""``0.8 ** 256`` is 1e-25: reached only if the generator has next to no different problems."""

T = TypeVar("T")


def split_of(text: str, eval_share: float = EVAL_SHARE) -> str:
    """The side that a problem with this text is on."""
    return EVAL if unit_hash(text) < eval_share else TRAIN


def unit_hash(text: str) -> float:
    """A number in [0, 1) that ``text`` alone determines."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big") / 2**48


def rng_of(seed: int, split: str, index: int, draw: int = 0) -> random.Random:
    """The random numbers of one draw; the same in every process and Python version."""
    return random.Random(f"{seed}/{split}/{index}/{draw}")


def draw_on_side(
    draw: Callable[[int], T], text: Callable[[T], str], split: str, eval_share: float = EVAL_SHARE
) -> T:
    """The first of ``draw(0), draw(1), …`` whose text is on the side ``split``."""
    for i in range(MAX_DRAWS):
        found = draw(i)
        if split_of(text(found), eval_share) == split:
            return found
    raise EnvironmentFailure(
        f"{MAX_DRAWS} draws gave no {split} problem: the generator has too few different problems, "
        "so make them more varied or change eval_share"
    )
