"""Corpus: the documents that the ``tiny`` model is trained on, drawn without end from a seed.

Three quarters are transcripts of the built-in tasks (problems of split ``train`` only), the rest
are other bytes: sentences, counting, copying, noise. A transcript follows what the environment
would have said. The policy's part is right at a given rate and else wrong in ways that look
alike, so that the trained model knows the answer yet gives it only so often: room for
reinforcement learning, and a start from which it takes off.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from plait.envs.tiny import RETRY, UNKNOWN
from plait.envs.tiny_problems import (
    STOP,
    SUM_BELOW,
    Problem,
    lookup_name,
    lookup_problem,
    sort_problem,
    split_of,
    sum_problem,
)

TASK_SHARE = 0.75
GIVEN_WEIGHT = 0.2
"""Loss weight of what the policy never writes (prompts, replies) and of other text."""

SORT_TURNS = 5
LOOKUP_CALLS = 3

Part = tuple[str, float]
"""Text and the weight of its loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How often each part of a transcript is right; ``wrong_weight`` is the rest's loss weight."""

    sum: float
    sort_first: float
    sort_retry: float
    query: float
    guess: float
    """How often an answer is given without a query."""
    answer: float
    wrong_weight: float


def documents(rng: random.Random, rates: Rates) -> Iterator[list[Part]]:
    """Documents for ever."""
    tasks = (_sum, _sort, _lookup)
    other = (_sentence, _count, _copy, _noise)
    while True:
        if rng.random() < TASK_SHARE:
            yield rng.choice(tasks)(rng, rates)
        else:
            yield [(rng.choice(other)(rng), GIVEN_WEIGHT)]


def _train(make: Callable[[random.Random], Problem], rng: random.Random) -> Problem:
    while split_of((problem := make(rng)).key) != "train":
        pass
    return problem


def _turn(right: str, wrong: str, ok: bool, rates: Rates) -> Part:
    return (right + STOP, 1.0) if ok else (wrong + STOP, rates.wrong_weight)


def _sum(rng: random.Random, rates: Rates) -> list[Part]:
    problem = _train(sum_problem, rng)
    right = int(problem.answer)
    wrong = right
    while wrong == right:
        near = rng.random() < 0.5
        wrong = abs(right + rng.randint(-10, 10)) if near else rng.randrange(2 * SUM_BELOW - 1)
    part = _turn(problem.answer, f"{wrong:02}", rng.random() < rates.sum, rates)
    return [(problem.prompt, GIVEN_WEIGHT), part]


def _sort(rng: random.Random, rates: Rates) -> list[Part]:
    problem = _train(lambda r: sort_problem(r, r.choice((3, 4, 4, 4, 5))), rng)
    parts: list[Part] = [(problem.prompt, GIVEN_WEIGHT)]
    for turn in range(SORT_TURNS):
        ok = rng.random() < (rates.sort_retry if turn else rates.sort_first)
        parts.append(_turn(problem.answer, _unsorted(problem.answer, rng), ok, rates))
        if ok:
            break
        if turn + 1 < SORT_TURNS:
            parts.append((RETRY, GIVEN_WEIGHT))
    return parts


def _unsorted(answer: str, rng: random.Random) -> str:
    letters = list(answer)
    while "".join(letters) == answer:
        if rng.random() < 0.5:
            i = rng.randrange(len(letters) - 1)
            letters[i], letters[i + 1] = letters[i + 1], letters[i]
        else:
            rng.shuffle(letters)
    return "".join(letters)


def _lookup(rng: random.Random, rates: Rates) -> list[Part]:
    problem = _train(lookup_problem, rng)
    parts: list[Part] = [(problem.prompt, GIVEN_WEIGHT)]
    for _ in range(LOOKUP_CALLS):
        if rng.random() < rates.guess:
            return [*parts, _turn("", str(rng.randrange(10, 100)), False, rates)]
        ok = rng.random() < rates.query
        wrong = _other(problem.secret, lookup_name, rng)
        parts.append(_turn("?" + problem.secret, "?" + wrong, ok, rates))
        parts.append((f"{problem.answer}=" if ok else UNKNOWN, GIVEN_WEIGHT))
        if ok:
            wrong = _other(problem.answer, lambda r: str(r.randrange(10, 100)), rng)
            return [*parts, _turn(problem.answer, wrong, rng.random() < rates.answer, rates)]
    return parts


def _other(right: str, make: Callable[[random.Random], str], rng: random.Random) -> str:
    while (wrong := make(rng)) == right:
        pass
    return wrong


ARTICLES = ("the", "a", "one", "every", "my", "your", "no", "that")
ADJECTIVES = ("red", "small", "old", "quiet", "green", "quick", "cold", "bright", "")
NOUNS = ("cat", "tree", "river", "boat", "child", "stone", "bird", "lamp", "house", "cloud")
VERBS = ("sees", "likes", "finds", "carries", "follows", "hears", "paints", "leaves")


def _sentence(rng: random.Random) -> str:
    def thing() -> str:
        words = (rng.choice(ARTICLES), rng.choice(ADJECTIVES), rng.choice(NOUNS))
        return " ".join(word for word in words if word)

    return f"{thing()} {rng.choice(VERBS)} {thing()}.".capitalize()


def _count(rng: random.Random) -> str:
    start, step = rng.randrange(100), rng.choice((1, 1, 2, 5, 10))
    return "count " + " ".join(str(start + i * step) for i in range(rng.randint(3, 7)))


def _copy(rng: random.Random) -> str:
    text = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(5))
    return f"copy {text}={text}{STOP}" if rng.random() < 0.5 else f"back {text}={text[::-1]}{STOP}"


def _noise(rng: random.Random) -> str:
    return "".join(chr(rng.randrange(32, 127)) for _ in range(rng.randint(4, 16)))
