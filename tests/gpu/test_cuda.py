"""The torch engine on a CUDA device gives what it gives on the CPU."""

from pathlib import Path

import pytest
import torch
from random_models import random_model

from plait.core.ids import OpId, RunId
from plait.core.operations import Datum, Sample, SamplingParams
from plait.core.runs import LoraSpec
from plait.engines.torch.rollout import TorchRollout
from plait.engines.torch.trainer import TorchTrain

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
RUN = RunId("run")
PROMPT = tuple(range(3, 40))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("cuda") / "model", "qwen3")


def _greedy(model: Path, device: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
    engine = TorchRollout(model, n_blocks=64, device=device)
    params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    engine.add(Sample(op_id=OpId("a"), run_id=RUN, version=None, prompt=PROMPT, params=params))
    while engine.has_work():
        if finished := engine.step().finished:
            sampled = finished[0][1].samples[0]
            return sampled.tokens, sampled.logprobs
    raise AssertionError("never finished")


def test_greedy_tokens_and_logprobs(model: Path) -> None:
    tokens, logprobs = _greedy(model, "cpu")
    on_gpu = _greedy(model, "cuda")
    assert on_gpu[0] == tokens
    assert on_gpu[1] == pytest.approx(logprobs, abs=1e-4)


def _gradient(model: Path, device: str, dtype: torch.dtype) -> torch.Tensor:
    engine = TorchTrain(model, device=device, dtype=dtype)
    engine.create(RUN, LoraSpec(rank=4, alpha=8.0))
    n = len(PROMPT) - 1
    datum = Datum(
        input_tokens=PROMPT[:-1],
        target_tokens=PROMPT[1:],
        mask=[True] * n,
        inputs={"weights": [1.0] * n},
    )
    for _ in engine.forward_backward(RUN, [datum], "cross_entropy", {}):
        pass
    return engine._run(RUN).grad.float().cpu()


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-4), (torch.bfloat16, 5e-2)])
def test_gradient(model: Path, dtype: torch.dtype, most: float) -> None:
    want, found = _gradient(model, "cpu", torch.float32), _gradient(model, "cuda", dtype)
    assert (found - want).norm() <= most * want.norm()
