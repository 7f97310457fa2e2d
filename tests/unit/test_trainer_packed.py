"""The trainer's packed head: where it is used, and that it costs one block of logits at a time."""

import weakref
from pathlib import Path

import pytest
import torch
from random_models import random_model
from trainer_support import RUN, drain, make_data, stirred

from plait.core.runs import LoraSpec
from plait.engines.factory import EngineConfig
from plait.engines.torch.build import build
from plait.engines.torch.packed import packed_product
from plait.engines.torch.train import head, products
from plait.engines.torch.trainer import TorchTrain

SPEC = LoraSpec(rank=4, alpha=6.0, seed=1)
LOSS = "importance_sampling"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("packed") / "model", "llama")


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each packed product."""
    rows: list[int] = []

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        rows.append(len(x))
        return packed_product(x, w)

    monkeypatch.setattr(products, "packed_product", product)
    return rows


def gradient(engine: TorchTrain) -> torch.Tensor:
    engine.create(RUN, SPEC)
    stirred(engine)
    drain(engine.forward_backward(RUN, make_data([9, 30]), LOSS, {}))
    return engine._run(RUN).grad.clone()


def test_the_head_is_packed_unless_memory_comes_first(model: Path, packed: list[int]) -> None:
    def config(**options: float) -> EngineConfig:
        return EngineConfig(
            model_dir=str(model),
            rollout=False,
            train=True,
            kv_blocks=1,
            block_size=4,
            max_seqs=1,
            train_memory_bytes=100_000_000,
            options=options,
        )

    lean = build(config(pack_layers=0.0)).train
    assert isinstance(lean, TorchTrain)
    want = gradient(lean)
    assert not packed
    usual = build(config()).train
    assert isinstance(usual, TorchTrain)
    torch.testing.assert_close(gradient(usual), want, atol=1e-6, rtol=1e-4)
    assert packed


def test_one_block_of_logits_is_held_at_a_time(model: Path, monkeypatch) -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        assert not any(ref() is not None for ref in made)
        logits = packed_product(x, w)
        made.append(weakref.ref(logits))
        return logits

    monkeypatch.setattr(products, "packed_product", product)
    monkeypatch.setattr(head, "BLOCK_BYTES", 1)
    gradient(TorchTrain(model))
    assert len(made) > 1
