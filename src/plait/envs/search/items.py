"""Items: two-hop questions over the geo corpus, each with one right answer.

An item is a function of (seed, split, index). A city belongs to ``eval`` or ``train`` by its own id
whatever the seed, so no run trains on a city that another evaluates on. A city serves only if its
name is unique in the data, and a question only if the passage it names does not hold the answer:
the second passage is needed.
"""

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from plait.core.errors import ConfigError
from plait.envs.tools.geo import City, Country, city_doc, country_doc

EVAL_SHARE = 5
"""One city in five is kept for evaluation: some 2,000 of the default corpus."""

SPLITS = ("train", "eval")
MIN_CITIES = 3
"""Fewer of a kind in a split, and the same question would come again and again."""
MAX_DRAWS = 1000
"""About a third of the draws are refused; the capital of a city state always is."""

Kind = Literal["currency", "capital", "domain", "calling_code", "code3", "population"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_LIES = "of the country in which the city {name} lies?"
_QUESTIONS = {
    "currency": f"What is the currency {_LIES}",
    "capital": f"What is the capital {_LIES}",
    "domain": f"What is the internet domain {_LIES}",
    "calling_code": f"What is the calling code {_LIES}",
    "code3": f"What is the three-letter code {_LIES}",
    "population": "What is the population of the capital of {name}?",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A question, the answers that count as right, and the two passages that give it."""

    kind: str
    question: str
    answers: tuple[str, ...]
    hops: tuple[str, str]
    """Document ids in the order in which they are needed."""
    city: int


class Items:
    """All questions of one corpus for one seed."""

    def __init__(
        self,
        countries: Sequence[Country],
        cities: Sequence[City],
        texts: Mapping[str, str],
        *,
        seed: int,
        kinds: Sequence[str] = KINDS,
    ) -> None:
        """``texts``: passages by document id."""
        self._seed = seed
        self._texts = texts
        self._countries = {c.code: c for c in countries}
        self._pools: dict[tuple[str, str], list[City]] = {}
        for city in cities:
            for kind in kinds:
                if city.unique and _answers(kind, city, self._countries[city.country]):
                    self._pools.setdefault((split_of(city.geo_id), kind), []).append(city)
        for split in SPLITS:
            for kind in kinds:
                if len(self._pools.get((split, kind), ())) < MIN_CITIES:
                    raise ConfigError(
                        f"the corpus has too few {split} questions of kind {kind}: "
                        f"raise `passages` or leave that kind out of `questions`"
                    )
        self._kinds = tuple(kinds)

    def item(self, index: int, split: str) -> Item:
        """Problem ``index`` of ``split``."""
        rng = random.Random(f"{self._seed}/{split}/{index}")
        for _ in range(MAX_DRAWS):
            kind = rng.choice(self._kinds)
            city = rng.choice(self._pools[split, kind])
            if item := self._item(kind, city):
                return item
        raise ConfigError(f"no question of the kinds {', '.join(self._kinds)} needs two passages")

    def _item(self, kind: str, city: City) -> Item | None:
        """None if the first passage gives the answer away."""
        country = self._countries[city.country]
        answers = _answers(kind, city, country)
        hops = city_doc(city.geo_id), country_doc(country.code)
        if kind == "population":
            hops = hops[1], hops[0]
        first = words(self._texts[hops[0]])
        if any(_within(words(answer), first) for answer in answers):
            return None
        name = country.name if kind == "population" else city.name
        question = _QUESTIONS[kind].format(name=name)
        return Item(kind=kind, question=question, answers=answers, hops=hops, city=city.geo_id)


def split_of(geo_id: int) -> str:
    """The split that a city belongs to."""
    digest = hashlib.sha256(str(geo_id).encode()).digest()
    return "eval" if digest[0] % EVAL_SHARE == 0 else "train"


def words(text: str) -> list[str]:
    """Lower-case words for comparing answers: no punctuation, commas in numbers, or articles."""
    text = re.sub(r"(?<=\d),(?=\d)", "", text.lower())
    return [w for w in re.findall(r"\w+", text) if w not in ("the", "a", "an")]


def _answers(kind: str, city: City, country: Country) -> tuple[str, ...]:
    """What counts as right; empty if the question cannot be asked."""
    if kind == "population":
        return (f"{city.population:,}",) if city.name == country.capital else ()
    found = {
        "currency": (country.currency, country.currency_code),
        "capital": (country.capital,),
        "domain": (country.domain,),
        "calling_code": (country.calling_code,),
        "code3": (country.code3,),
    }[kind]
    return found if all(found) else ()


def _within(part: list[str], whole: list[str]) -> bool:
    n = len(part)
    return any(whole[i : i + n] == part for i in range(len(whole) - n + 1))
