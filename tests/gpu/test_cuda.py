"""The torch engine on a CUDA device gives what it gives on the CPU.

Each test also runs on the CPU, where it holds the engine against itself: so the tests are known to
work wherever they are run, and what they say of CUDA they say only where there is one.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from custom_support import SQUARES, by_hand, node, ref
from random_models import random_model

from benchmarks.engine.adapters import random_adapter
from plait.cli import main
from plait.core.custom_graphs import read
from plait.core.errors import RequestError
from plait.core.ids import OpId, RunId
from plait.core.operations import AdamParams, Datum, Sample, Sampled, SampleResult, SamplingParams
from plait.core.runs import LoraSpec
from plait.engines.torch.build import measure_peak
from plait.engines.torch.devices import cuda_devices
from plait.engines.torch.rollout import TorchRollout
from plait.engines.torch.trainer import TorchTrain

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("one_thread")]
RUN = RunId("run")
PROMPT = tuple(range(3, 40))
ADAM = AdamParams(learning_rate=1e-3)
Drawn = dict[str, tuple[Sampled, ...]]

NOISE = 1e-4
"""Of log-probs in fp32, between devices and orders of sums."""

NOISE_BF16 = 0.15
"""Logits from 16 on are rounded to eighths."""


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device: nothing of CUDA has been tested")
    return request.param


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("cuda") / "model", "qwen3")


def rollout(model: Path, device: str, *, graphs: bool, **options) -> TorchRollout:
    engine = TorchRollout(model, **{"n_blocks": 256, "device": device, "graphs": graphs} | options)
    for i, rank in enumerate((4, 24)):
        engine.load_adapter(RunId(f"r{i}"), 1, random_adapter(model, rank))
    return engine


def crowd(n: int = 5, **params) -> list[Sample]:
    """Samples of the base model and two adapters that end one after the other."""
    policies = [(RUN, None), (RunId("r0"), 1), (RunId("r1"), 1)]
    return [
        Sample(
            op_id=OpId(str(i)),
            run_id=policies[i % 3][0],
            version=policies[i % 3][1],
            prompt=PROMPT[: 9 + 5 * i],
            n=1 + i % 2,
            params=SamplingParams(**{"max_tokens": 12 + 4 * i, "ignore_eos": True} | params),
        )
        for i in range(n)
    ]


def finish(engine: TorchRollout, *ops: Sample) -> Drawn:
    for op in ops:
        engine.add(op)
    drawn: Drawn = {}
    while engine.has_work():
        step = engine.step()
        assert not step.failed
        drawn.update({op_id: result.samples for op_id, result in step.finished})
    return drawn


def assert_same(got: Drawn, want: Drawn) -> None:
    assert got.keys() == want.keys()
    for op_id, samples in want.items():
        for a, b in zip(got[op_id], samples, strict=True):
            assert a.tokens == b.tokens
            assert a.logprobs == pytest.approx(b.logprobs, abs=NOISE)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_and_logprobs(model: Path, device: str, graphs: bool, temperature: float) -> None:
    ops = crowd(temperature=temperature, seed=7)
    engine = rollout(model, device, graphs=graphs)
    assert_same(finish(engine, *ops), finish(rollout(model, "cpu", graphs=False), *ops))
    if graphs:
        assert len(engine._graphs._kept) > 1
        assert not engine._graphs._broken


def test_what_a_prompt_is_asked(model: Path, device: str) -> None:
    rows = tuple((token, 1, 2) if i % 3 else () for i, token in enumerate(PROMPT[1:]))
    asked = {"prompt": PROMPT, "prompt_logprobs": True, "prompt_targets": rows, "prompt_draws": 3}
    op = replace(crowd(1, seed=7, temperature=0.8)[0], **asked)
    got, want = (told(rollout(model, d, graphs=False), op) for d in (device, "cpu"))
    assert flat(got.prompt_targets) == pytest.approx(flat(want.prompt_targets), abs=NOISE)
    assert got.prompt_logprobs == pytest.approx(want.prompt_logprobs, abs=NOISE)
    drawn, wanted = flat(got.prompt_draws), flat(want.prompt_draws)
    assert [token for token, _ in drawn] == [token for token, _ in wanted]
    assert [p for _, p in drawn] == pytest.approx([p for _, p in wanted], abs=NOISE)


def told(engine: TorchRollout, op: Sample) -> SampleResult:
    engine.add(op)
    while not (step := engine.step()).finished:
        assert not step.failed
    return step.finished[0][1]


def flat(rows: tuple) -> list:
    return [value for row in rows for value in row]


def test_graphs_outlive_versions_and_are_made_anew_when_memory_moves(
    model: Path, device: str
) -> None:
    engine = rollout(model, device, graphs=True)
    finish(engine, *crowd())
    engine.load_adapter(RunId("r0"), 2, random_adapter(model, 4))
    engine.drop_adapter(RunId("r0"), 1)
    engine.load_adapter(RunId("r0"), 1, random_adapter(model, 4))
    for op in crowd():
        engine.add(op)
    for _ in range(5):
        engine.step()
    engine.resize_kv(128)
    engine.load_adapter(RunId("late"), 1, random_adapter(model, 32))
    assert not engine._graphs._kept
    want = finish(rollout(model, "cpu", graphs=False), *crowd())
    got = finish(engine)
    assert got
    assert_same(got, {op_id: want[op_id] for op_id in got})


def test_a_small_cache_with_preemption(model: Path, device: str) -> None:
    engine = rollout(model, device, graphs=True, n_blocks=24, max_batch_tokens=16, max_seqs=6)
    assert_same(finish(engine, *crowd()), finish(rollout(model, "cpu", graphs=False), *crowd()))


@pytest.mark.parametrize("graphs", [False, True])
def test_bf16_sampler_and_trainer_agree(model: Path, device: str, graphs: bool) -> None:
    op = crowd(1, seed=7)[0]
    options = {"dtype": torch.bfloat16, "device": device}
    (sampled,) = finish(rollout(model, graphs=graphs, **options), op)[op.op_id]
    engine = TorchTrain(model, **options)
    engine.create(RUN, LoraSpec())
    scoring = engine.forward(RUN, [datum((*op.prompt, *sampled.tokens))], adapter=False)
    scored = ended(scoring).logprobs[0][len(op.prompt) - 1 :]
    assert list(sampled.logprobs) == pytest.approx(list(scored), abs=NOISE_BF16)


def datum(tokens: tuple[int, ...]) -> Datum:
    n = len(tokens) - 1
    return Datum(
        input_tokens=tokens[:-1],
        target_tokens=tokens[1:],
        mask=[True] * n,
        inputs={"weights": [1.0] * n},
    )


def ended(work):
    while True:
        try:
            next(work)
        except StopIteration as stop:
            return stop.value


def gradient(model: Path, device: str, dtype: torch.dtype) -> TorchTrain:
    engine = TorchTrain(model, device=device, dtype=dtype)
    engine.create(RUN, LoraSpec(rank=4, alpha=8.0))
    ended(engine.forward_backward(RUN, [datum(PROMPT), datum(PROMPT[:20])], "cross_entropy", {}))
    return engine


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-4), (torch.bfloat16, 5e-2)])
def test_gradient_and_step(model: Path, device: str, dtype: torch.dtype, most: float) -> None:
    engines = gradient(model, "cpu", torch.float32), gradient(model, device, dtype)
    want, got = (e._run(RUN).grad.to("cpu", copy=True) for e in engines)
    assert (got - want).norm() <= most * want.norm()
    assert got.dtype == torch.float32
    for engine in engines:
        engine._run(RUN).grad.copy_(want)
        engine.optim_step(RUN, ADAM)
    want, got = (e._run(RUN).flat.cpu() for e in engines)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-7)


def test_a_loss_of_ones_own(model: Path, device: str) -> None:
    """It is carried out on the CPU: an index out of range leaves the device as it was."""
    loss = read(by_hand(*SQUARES))
    bad = read(by_hand(node("a", "operator.getitem", ref("logprobs"), 99), *SQUARES, loss="a"))
    grads = []
    for where in ("cpu", device):
        engine = TorchTrain(model, device=where)
        engine.create(RUN, LoraSpec(rank=4, alpha=8.0))
        with pytest.raises(RequestError, match=r"operator\.getitem"):
            ended(engine.forward_backward(RUN, [datum(PROMPT)], bad, {}))
        ended(engine.forward_backward(RUN, [datum(PROMPT), datum(PROMPT[:20])], loss, {}))
        grads.append(engine._run(RUN).grad.to("cpu", copy=True))
    want, got = grads
    assert want.norm() > 0
    assert (got - want).norm() <= 1e-4 * want.norm()


@pytest.mark.slow
def test_a_launch_from_start_to_end(device: str, tmp_path: Path) -> None:
    file, launch = tmp_path / "jobs.yaml", tmp_path / "launch"
    file.write_text(
        "model: tiny\n"
        "defaults: {steps: 3, groups: 2, samples: 4, limits: {max_tokens: 8}}\n"
        "jobs:\n"
        "  - {name: sum, environment: {name: tiny-sum}}\n"
        "  - {name: sort, environment: {name: tiny-sort}}\n"
    )
    with pytest.raises(SystemExit) as end:
        main.run([file], directory=launch, resume=None, device=device, dtype="bf16", kv_blocks=1024)
    assert end.value.code == 0
    info = json.loads((launch / "launch.json").read_text())
    assert info["settings"]["device"] == {"cpu": "cpu", "cuda": "cuda:0"}[device]
    assert info["settings"]["dtype"] == "bf16"
    assert info["peak_flops"] > 0
    for name in ("sum", "sort"):
        lines = (launch / "jobs" / name / "metrics.jsonl").read_text().splitlines()
        steps = [row for row in map(json.loads, lines) if "loss" in row]
        assert len(steps) == 3
        differences = [row["sampler_trainer_logprob_max_diff"] for row in steps]
        assert max(d for d in differences if d is not None) <= 2 * NOISE_BF16


def test_what_is_known_of_the_device(device: str) -> None:
    assert measure_peak(torch.device(device), torch.float32, repeats=1) > 0
    found = cuda_devices()
    assert len(found) == torch.cuda.device_count()
    assert all(d["name"] and d["free_bytes"] > 0 for d in found)
