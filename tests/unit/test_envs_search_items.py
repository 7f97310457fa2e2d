"""plait.envs.search.items: two-hop questions with right answers and disjoint splits."""

import pytest

from plait.core.errors import ConfigError
from plait.envs.search.items import KINDS, Item, Items, split_of, words
from plait.envs.tools.geo import Geo, build_geo


@pytest.fixture(scope="module")
def geo() -> Geo:
    return build_geo(3_000)


def items(geo: Geo, seed: int = 0, kinds: tuple[str, ...] = KINDS) -> Items:
    texts = {p.doc_id: p.text for p in geo.passages}
    return Items(geo.countries, geo.cities, texts, seed=seed, kinds=kinds)


def drawn(source: Items, split: str, n: int = 300) -> list[Item]:
    return [source.item(i, split) for i in range(n)]


def test_an_item_depends_on_seed_split_and_index_alone(geo: Geo) -> None:
    first = drawn(items(geo), "train")
    source = items(geo)
    assert [source.item(i, "train") for i in reversed(range(300))] == first[::-1]
    assert drawn(items(geo, seed=1), "train") != first
    assert drawn(items(geo), "eval") != first
    assert len({i.question for i in first}) > 200


def test_no_city_is_in_both_splits_whatever_the_seeds(geo: Geo) -> None:
    train = {i.city for i in drawn(items(geo), "train", 2000)}
    held_out = {i.city for i in drawn(items(geo, seed=7), "eval", 2000)}
    assert len(held_out) > 100
    assert not train & held_out
    assert {split_of(c) for c in train} == {"train"}


def test_the_second_passage_holds_the_answer_and_the_first_does_not(geo: Geo) -> None:
    text = {p.doc_id: p.text for p in geo.passages}
    seen = set()
    for item in drawn(items(geo), "train"):
        seen.add(item.kind)
        first, second = (f" {' '.join(words(text[hop]))} " for hop in item.hops)
        for answer in item.answers:
            wanted = f" {' '.join(words(answer))} "
            assert wanted in second, item
            assert wanted not in first, item
    assert seen == set(KINDS)


def test_known_answers_are_right(geo: Geo) -> None:
    known = {
        "What is the currency of the country in which the city Graz lies?": "Euro",
        "What is the calling code of the country in which the city Graz lies?": "+43",
        "What is the capital of the country in which the city Shenzhen lies?": "Beijing",
        "What is the three-letter code of the country in which the city Osaka lies?": "JPN",
        "What is the internet domain of the country in which the city Toronto lies?": ".ca",
    }
    source = items(geo)
    found = {}
    for split in ("train", "eval"):
        for kind in KINDS:
            for city in source._pools[split, kind]:
                if (item := source._item(kind, city)) and item.question in known:
                    found[item.question] = item.answers[0]
    assert found == known


def test_a_city_whose_name_is_not_unique_is_never_asked_about(geo: Geo) -> None:
    twice = {c.geo_id for c in geo.cities if not c.unique}
    assert twice
    assert not twice & {i.city for i in drawn(items(geo), "train", 2000)}


def test_chosen_kinds_only(geo: Geo) -> None:
    assert {i.kind for i in drawn(items(geo, kinds=("currency",)), "eval")} == {"currency"}


def test_a_corpus_too_small_for_a_kind_is_refused(geo: Geo) -> None:
    with pytest.raises(ConfigError, match="raise `passages`"):
        Items(geo.countries, geo.cities[:5], {}, seed=0, kinds=("population",))


def test_words_ignore_case_punctuation_and_articles() -> None:
    assert words("The 9,733,276 Euros, (EUR)") == ["9733276", "euros", "eur"]
