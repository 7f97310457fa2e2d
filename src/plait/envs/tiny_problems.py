"""Problems of the ``tiny-*`` tasks: what is asked, what is right, and which split it belongs to.

A problem's ``key`` alone decides its split (a hash), so that nothing asked in ``eval`` is ever
asked in ``train``, whatever the seed and index. Everything is a function of the caller's random
source; ``scripts/train_tiny.py`` draws the same problems to train the ``tiny`` model.
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass

SPLITS = ("train", "eval")
EVAL_BYTES = 64
"""Keys whose hash begins with a byte below this are held out: a quarter, enough for intervals."""

STOP = ";"
"""Ends every turn of the policy."""

SUM_BELOW = 50
"""Terms are below this: answers keep two digits, and the tiny model learns every carry."""
SORT_LETTERS = "abcdefghijkl"
CONSONANTS = "bcdfghjklmnprstvwz"
VOWELS = "aeiou"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One question. ``secret`` is what a tool knows and the prompt does not say."""

    prompt: str
    answer: str
    key: str
    secret: str = ""


def sum_problem(rng: random.Random) -> Problem:
    """``sum 37+05=``, two digits each; the key is the pair without its order."""
    a, b = rng.randrange(SUM_BELOW), rng.randrange(SUM_BELOW)
    return Problem(
        prompt=f"sum {a:02}+{b:02}=", answer=f"{a + b:02}", key=f"sum {min(a, b)}+{max(a, b)}"
    )


def sort_problem(rng: random.Random, length: int = 4) -> Problem:
    """``sort dbca=``; the key is the set of letters, never yet in order when asked."""
    letters = rng.sample(SORT_LETTERS, length)
    answer = "".join(sorted(letters))
    while (asked := "".join(letters)) == answer:
        rng.shuffle(letters)
    return Problem(prompt=f"sort {asked}=", answer=answer, key=f"sort {answer}")


def lookup_problem(rng: random.Random) -> Problem:
    """``get bob=``: the value of a name, which only the table knows; the key is the name."""
    name = lookup_name(rng)
    value = str(rng.randrange(10, 100))
    return Problem(prompt=f"get {name}=", answer=value, key=f"get {name}", secret=name)


def lookup_name(rng: random.Random) -> str:
    """Three letters that can be spoken."""
    return rng.choice(CONSONANTS) + rng.choice(VOWELS) + rng.choice(CONSONANTS)


def split_of(key: str) -> str:
    """``train`` or ``eval``, for ever the same."""
    first = hashlib.blake2b(key.encode(), digest_size=1).digest()[0]
    return "eval" if first < EVAL_BYTES else "train"


def draw(
    make: Callable[[random.Random], Problem], name: str, seed: int, split: str, index: int
) -> Problem:
    """Problem ``index`` of ``split``: the first of a stream, seeded by all four, that fits."""
    if split not in SPLITS:
        raise ValueError(f"split {split!r} is none of {SPLITS}")
    rng = random.Random(f"{name}/{seed}/{split}/{index}")
    while split_of((problem := make(rng)).key) != split:
        pass
    return problem
