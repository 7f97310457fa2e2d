"""bf16 weights on a CPU: log-probs are fp32, and so is all that training keeps."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from random_models import random_model
from trainer_support import RUN, drain

from plait.core.ids import OpId
from plait.core.operations import AdamParams, Datum, Sample, Sampled, SamplingParams
from plait.core.runs import LoraSpec
from plait.engines.factory import EngineConfig, Engines
from plait.engines.torch.build import build
from plait.models.registry import TINY_DIR

pytestmark = pytest.mark.usefixtures("one_thread")
PROMPT = tuple(b"What is 3 + 4? Answer:")

LARGEST, MEAN = 0.15, 0.015
"""Differences of log-probs between sampler and trainer: logits from 16 on are rounded to eighths in
bf16, on each side after sums of its own order (seen: 0.09 and 0.009)."""


def engines(model: Path, dtype: str = "bf16") -> Engines:
    return build(
        EngineConfig(
            model_dir=str(model),
            rollout=True,
            train=True,
            kv_blocks=256,
            block_size=4,
            max_seqs=16,
            train_memory_bytes=10**9,
            dtype=dtype,
        )
    )


def sampled(e: Engines, version: int, path: str) -> tuple[Sampled, ...]:
    e.rollout.load_adapter(RUN, version, path)
    params = SamplingParams(max_tokens=24, seed=3, ignore_eos=True)
    name = OpId(f"v{version}")
    e.rollout.add(
        Sample(op_id=name, run_id=RUN, version=version, prompt=PROMPT, params=params, n=8)
    )
    while e.rollout.has_work():
        step = e.rollout.step()
        assert not step.failed
        for _, result in step.finished:
            return result.samples
    raise AssertionError("never finished")


def datum(s: Sampled, advantage: float) -> Datum:
    tokens, before = (*PROMPT, *s.tokens), len(PROMPT) - 1
    mask = [False] * before + [True] * len(s.tokens)
    return Datum(
        input_tokens=tokens[:-1],
        target_tokens=tokens[1:],
        mask=mask,
        inputs={
            "advantages": [advantage] * len(mask),
            "logprobs": [0.0] * before + list(s.logprobs),
        },
    )


@pytest.fixture(scope="module", params=["qwen3", "tiny"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "tiny":
        return TINY_DIR
    return random_model(tmp_path_factory.mktemp("bf16") / "model", request.param)


def test_sampler_and_trainer_agree_and_masters_are_fp32(model: Path, tmp_path: Path) -> None:
    e = engines(model)
    assert e.rollout._model.weights.dtype == e.rollout._kv.dtype == torch.bfloat16
    e.train.create(RUN, LoraSpec(rank=8, alpha=16.0, seed=1))
    differences, small = [], 0
    for step in range(4):
        folder = tmp_path / str(step)
        folder.mkdir()
        e.train.save(RUN, str(folder), optimizer=False)
        samples = sampled(e, step, str(folder))
        data = [datum(s, (-1.0) ** i) for i, s in enumerate(samples)]
        scores = drain(e.train.forward(RUN, data, adapter=True)).logprobs
        for s, scored in zip(samples, scores, strict=True):
            differences += [abs(a - b) for a, b in zip(s.logprobs, scored, strict=True)]
            small += sum(_is_finer_than_bf16(x) for x in (*s.logprobs, *scored))
        drain(e.train.forward_backward(RUN, data, "importance_sampling", {}))
        params = e.train._run(RUN)
        before = params.flat.clone()
        e.train.optim_step(RUN, AdamParams(learning_rate=1e-3))
        kept = (params.flat, params.grad, params.m, params.v)
        assert Counter(t.dtype for t in kept) == {torch.float32: 4}
        assert not torch.equal(params.flat, before)
    assert max(differences) <= LARGEST
    assert sum(differences) / len(differences) <= MEAN
    assert small > len(differences), "log-probs have more digits than bf16"


def _is_finer_than_bf16(x: float) -> bool:
    return float(torch.tensor(x).bfloat16()) != pytest.approx(x, rel=1e-6, abs=0)


def test_a_step_smaller_than_bf16_moves_the_master(model: Path) -> None:
    train = engines(model).train
    train.create(RUN, LoraSpec(rank=4, seed=1))
    params = train._run(RUN)
    before = params.flat.clone()
    params.grad.fill_(1.0)
    train.optim_step(RUN, AdamParams(learning_rate=1e-6))
    assert (params.flat != before)[before != 0].all()
    large = before[before.abs() > 0.01].bfloat16()
    assert torch.equal(large - 1e-6, large), "which bf16 would have lost"


def test_a_worker_takes_its_dtype_from_its_configuration(model: Path) -> None:
    e = engines(model, "fp32")
    assert {x._model.weights.dtype for x in (e.rollout, e.train)} == {torch.float32}
