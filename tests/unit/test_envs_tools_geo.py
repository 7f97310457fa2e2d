"""plait.envs.tools.geo and corpus: a real corpus of the promised size, the same every time."""

from pathlib import Path

import pytest

from plait.envs.tools.corpus import read_facts, read_passages, write
from plait.envs.tools.geo import MIN_PASSAGES, Geo, build_geo, city_doc, country_doc


@pytest.fixture(scope="module")
def geo() -> Geo:
    return build_geo(12_000)


@pytest.fixture(scope="module")
def small() -> Geo:
    return build_geo(MIN_PASSAGES)


def test_the_corpus_has_the_size_asked_for_and_distinct_passages(geo: Geo) -> None:
    assert len(geo.passages) == 12_000
    assert len({p.doc_id for p in geo.passages}) == 12_000
    assert len({p.text for p in geo.passages}) == 12_000


def test_passages_vary_in_length(geo: Geo) -> None:
    lengths = sorted(len(p.text) for p in geo.passages)
    assert lengths[-600] > 1.6 * lengths[600]


def test_it_is_the_same_every_time_and_a_smaller_one_is_its_beginning(geo: Geo, small: Geo) -> None:
    assert small.passages == geo.passages[:MIN_PASSAGES]
    assert small.cities == geo.cities[: len(small.cities)]
    assert small.countries == geo.countries


def test_passages_tell_what_is_so(geo: Geo) -> None:
    text = {p.doc_id: p.text for p in geo.passages}
    austria = text[country_doc("AT")]
    assert austria.startswith("Austria is a country in Europe with the capital Vienna and the")
    for fact in ("Euro (EUR)", ".at", "+43", "AUT", "Switzerland", "Graz"):
        assert fact in austria
    (graz,) = (c for c in geo.cities if c.name == "Graz")
    assert text[city_doc(graz.geo_id)].startswith("Graz is a city in Austria. It has a population")
    assert graz.unique
    (springfield,) = {c.unique for c in geo.cities if c.name == "Springfield"}
    assert not springfield


def test_a_written_corpus_reads_back_equal(small: Geo, tmp_path: Path) -> None:
    write(small, tmp_path)
    assert read_passages(tmp_path) == small.passages
    assert read_facts(tmp_path) == (small.countries, small.cities)
