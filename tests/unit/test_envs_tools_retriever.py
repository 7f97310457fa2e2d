"""plait.envs.tools.retriever and minilm: real embeddings, real retrieval, built once."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from search_support import N_SMALL, own_cache

from plait.envs.tools.corpus import corpus_dir, read_facts
from plait.envs.tools.geo import city_doc, country_doc
from plait.envs.tools.minilm import MiniLM, batches, gelu
from plait.envs.tools.retriever import Retriever, model_dir


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    with own_cache(tmp_path_factory.getbasetemp() / "search"):
        yield Retriever({"passages": N_SMALL})


def recall(retriever: Retriever, wanted: dict[str, str], k: int) -> float:
    """Share of the queries (keys) whose document (value) is among the first ``k``."""
    replies = retriever.answer([{"query": q, "k": k} for q in wanted])
    hits = [
        any(d["id"] == doc for d in docs)
        for docs, doc in zip(replies, wanted.values(), strict=True)
    ]
    return sum(hits) / len(hits)


def named_cities(n_passages: int, every: int) -> dict[str, str]:
    cities = [c for c in read_facts(corpus_dir(n_passages))[1] if c.unique]
    return {f"city {c.name}": city_doc(c.geo_id) for c in cities[::every]}


def named_countries(n_passages: int) -> dict[str, str]:
    countries = read_facts(corpus_dir(n_passages))[0]
    return {f"country {c.name}": country_doc(c.code) for c in countries if c.capital}


def test_it_finds_the_passage_of_a_named_city_and_country(small: Retriever) -> None:
    assert recall(small, named_cities(N_SMALL, 2), k=2) >= 0.97
    assert recall(small, named_countries(N_SMALL), k=3) >= 0.93


def test_replies_do_not_depend_on_the_batch(small: Retriever) -> None:
    queries = ["city Tokyo", "the currency of Japan", "x"]
    together = small.answer([{"query": q, "k": 3} for q in queries])
    for query, docs in zip(queries, together, strict=True):
        (alone,) = small.answer([{"query": query, "k": 3}])
        assert [d["id"] for d in alone] == [d["id"] for d in docs]
        assert len(docs) == 3


def test_each_request_gets_its_own_number_of_documents(small: Retriever) -> None:
    replies = small.answer([{"query": "Paris", "k": 1}, {"query": "Paris", "k": 4}])
    assert [len(docs) for docs in replies] == [1, 4]


def test_the_index_is_built_once(small: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(Retriever, "_build", refuse)
    again = Retriever({"passages": N_SMALL})
    assert again.answer([{"query": "city Tokyo", "k": 1}]) == small.answer(
        [{"query": "city Tokyo", "k": 1}]
    )


def test_gelu_is_exact_to_single_precision() -> None:
    x = np.linspace(-9, 9, 200 * 8, dtype=np.float32).reshape(200, 8)
    want = [[v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in row] for row in x.tolist()]
    gelu(x)
    np.testing.assert_allclose(x, want, atol=1e-6)


def test_batches_hold_every_row_within_the_budget() -> None:
    lengths = [3, 50, 7, 7, 200, 1]
    cut = batches(lengths, 100)
    assert sorted(r for rows in cut for r in rows) == list(range(6))
    assert all(len(rows) == 1 or len(rows) * max(lengths[r] for r in rows) <= 100 for rows in cut)
    assert len(cut) < 6


@pytest.mark.slow
def test_embeddings_are_those_of_the_reference_implementation() -> None:
    import torch
    from transformers import AutoTokenizer, BertModel

    texts = ["Graz", "Graz is a city in Austria.", "a much longer sentence about nothing at all"]
    ours = MiniLM(model_dir(), max_tokens=48).embed(texts)
    tokenizer = AutoTokenizer.from_pretrained(str(model_dir()))
    model = BertModel.from_pretrained(str(model_dir()), add_pooling_layer=False).eval()
    with torch.no_grad():
        for text, vector in zip(texts, ours, strict=True):
            mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
            np.testing.assert_allclose(vector, (mean / mean.norm()).numpy(), atol=1e-5)


@pytest.mark.slow
def test_it_finds_named_cities_among_twelve_thousand_passages() -> None:
    """The index of the default corpus, from this user's cache or built into it."""
    retriever = Retriever({"passages": 12_000})
    assert recall(retriever, named_cities(12_000, 25), k=2) >= 0.95
    assert recall(retriever, named_countries(12_000), k=3) >= 0.85
