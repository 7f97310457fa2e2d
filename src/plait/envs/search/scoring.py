"""Scoring: the reward of a search, in [0, 1].

``(1 - s) · answer + s/2 · asked + s/2 · found`` with s the job's ``shaping``: *answer* is the word
overlap (F1) of the answer with the nearest right one, 1 for an exact match; *asked* is 1 if there
was a well-formed search; *found* is the share of the two needed passages that results have shown.
A weak model never answers a two-hop question by chance; the shares for asking and finding give its
first groups a signal, and neither can be had by writing more.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from plait.envs.search.items import Item, words


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A reward and its parts."""

    reward: float
    answer: float
    found: float
    exact: bool


def score(
    item: Item, answer: str | None, *, n_calls: int, shown: Collection[str], shaping: float
) -> Score:
    """``shown``: ids of the documents that the policy has seen."""
    overlap = 0.0 if answer is None else max(f1(answer, right) for right in item.answers)
    found = sum(hop in shown for hop in item.hops) / len(item.hops)
    reward = (1 - shaping) * overlap + shaping / 2 * (n_calls > 0) + shaping / 2 * found
    return Score(reward=reward, answer=overlap, found=found, exact=overlap == 1.0)


def f1(said: str, right: str) -> float:
    """Harmonic mean of word precision and recall, as SQuAD and HotpotQA use it."""
    a, b = Counter(words(said)), Counter(words(right))
    common = (a & b).total()
    return 2 * common / (a.total() + b.total()) if common else 0.0
