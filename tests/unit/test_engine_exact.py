"""Deterministic mode: the same bits whatever the batch, chunks and threads; trainer as sampler."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from random_models import VOCAB_SIZE, private_cache, random_model
from trainer_support import drain

from plait.core.errors import EngineError
from plait.core.ids import OpId, RunId
from plait.core.operations import AdamParams, Datum, ForwardResult, Sample, SampleResult
from plait.core.operations import SamplingParams as Params
from plait.core.runs import LoraSpec
from plait.engines.torch import exact
from plait.engines.torch import own as own_module
from plait.engines.torch.rollout import TorchRollout
from plait.engines.torch.trainer import TorchTrain
from plait.models.registry import TINY_DIR

MINE, OTHER, THIRD = RunId("mine"), RunId("other"), RunId("third")
RUNS = {MINE: LoraSpec(rank=12, alpha=40, seed=1), OTHER: LoraSpec(rank=3), THIRD: LoraSpec(rank=8)}
Threads = tuple[int, ...]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)


@pytest.fixture(scope="module", params=["tiny", "llama-tied-bias", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "tiny":
        return shutil.copytree(TINY_DIR, folder / "tiny")
    return random_model(folder, request.param)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(TINY_DIR, tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[RunId, str]:
    """Adapters that change what is drawn."""
    engine, paths = trainer(model), {}
    for run_id in RUNS:
        create(engine, run_id)
        paths[run_id] = str(tmp_path_factory.mktemp(run_id))
        engine.save(run_id, paths[run_id], optimizer=False)
    return paths


def trainer(model: Path, **options: Any) -> TorchTrain:
    with private_cache(model):
        return TorchTrain(model, **{"exact": True} | options)


def create(engine: TorchTrain, run_id: RunId = MINE) -> None:
    engine.drop(run_id)
    engine.create(run_id, RUNS[run_id])
    flat = engine._run(run_id).flat
    flat.add_(torch.randn(flat.shape, generator=torch.Generator().manual_seed(4)), alpha=0.03)


def sampler(model: Path, adapters: dict[RunId, str], **options: Any) -> TorchRollout:
    with private_cache(model):
        made = TorchRollout(model, **{"n_blocks": 900, "exact": True} | options)
    for run_id, path in adapters.items():
        made.load_adapter(run_id, 1, path)
    return made


def prompts() -> list[tuple[int, ...]]:
    draw = random.Random(0)
    lengths = (1, 9, 23, 170)
    return [tuple(draw.randrange(VOCAB_SIZE - 8) for _ in range(n)) for n in lengths]


def mine() -> list[Sample]:
    kinds = ({}, {"temperature": 0.7}, {"top_p": 0.8}, {})
    return [
        Sample(
            op_id=OpId(f"mine-{i}"),
            run_id=MINE,
            version=1,
            prompt=prompt,
            n=2,
            params=Params(max_tokens=8, seed=i, ignore_eos=True, **kind),
        )
        for i, (prompt, kind) in enumerate(zip(prompts(), kinds, strict=True))
    ]


def others(seed: int, n: int) -> list[Sample]:
    """Whoever else is there; some begin as mine do, or come from no adapter."""
    draw = random.Random(seed)
    return [
        Sample(
            op_id=OpId(f"other-{i}"),
            run_id=draw.choice((MINE, OTHER, THIRD)),
            version=draw.choice((1, 1, None)),
            prompt=draw.choice(prompts())[: draw.choice((5, 17, 120))],
            n=draw.choice((1, 3)),
            params=Params(
                max_tokens=draw.choice((3, 12)),
                seed=i,
                top_k=draw.choice((0, 3, 200)),
                temperature=draw.choice((1.0, 0.5)),
            ),
        )
        for i in range(n)
    ]


def drawn(
    engine: TorchRollout, *crowd: Sample, with_threads: Threads = (1,), seed: int = 0
) -> dict[str, SampleResult]:
    """What my samples are when they come in some order among the crowd."""
    waiting = [*mine(), *crowd]
    random.Random(seed).shuffle(waiting)
    found: dict[str, SampleResult] = {}
    numbers = cycle(with_threads)
    engine._model._on_layer = lambda: torch.set_num_threads(next(numbers))
    while waiting or engine.has_work():
        for op in waiting[:4]:
            engine.add(op)
        del waiting[:4]
        found |= {k: v for k, v in engine.step().finished if k.startswith("mine")}
    return found


@pytest.mark.parametrize(
    ("options", "n_others", "with_threads"),
    [
        ({}, 9, (1,)),
        ({}, 3, (1, 2)),
        ({"max_batch_tokens": 31, "max_seqs": 5}, 4, (1,)),
        ({"max_seqs": 1}, 0, (1,)),
        ({"n_blocks": 60}, 4, (2,)),
        ({"prefix_cache": False}, 4, (1,)),
        ({"block_size": 6, "n_blocks": 300}, 4, (1,)),
    ],
)
def test_samples_have_the_same_bits_whoever_is_there(
    model: Path, adapters, options: dict[str, Any], n_others: int, with_threads: Threads
) -> None:
    want = drawn(sampler(model, adapters))
    crowd = others(n_others, n_others)
    assert drawn(sampler(model, adapters, **options), *crowd, with_threads=with_threads) == want


def test_samples_are_preempted_and_paused_with_the_same_bits(model: Path, adapters) -> None:
    want = drawn(sampler(model, adapters))
    engine, found = sampler(model, adapters), {}
    for op in mine():
        engine.add(op)
    for step in range(10_000):
        if not engine.has_work():
            break
        found |= engine.step().finished
        if step % 4 == 1:
            engine._scheduler.preempt_all()
            engine.resize_kv(900 - step)
    assert found == want


def test_without_the_mode_the_company_shows_in_the_bits(tiny: Path, tmp_path: Path) -> None:
    """Else the tests here would show nothing."""
    paths = {}
    engine = trainer(tiny)
    for run_id in RUNS:
        create(engine, run_id)
        paths[run_id] = str(tmp_path / run_id)
        (tmp_path / run_id).mkdir()
        engine.save(run_id, paths[run_id], optimizer=False)
    want = drawn(sampler(tiny, paths, exact=False))
    small = sampler(tiny, paths, exact=False, max_batch_tokens=7, max_seqs=5)
    assert drawn(small, *others(1, 8)) != want


def data_of(found: dict[str, SampleResult]) -> list[Datum]:
    """My samples as training sequences; those of one prompt share it."""
    data = []
    for op in mine():
        for i, s in enumerate(found[op.op_id].samples):
            tokens, before = (*op.prompt, *s.tokens), len(op.prompt) - 1
            n = len(tokens) - 1
            data.append(
                Datum(
                    input_tokens=tokens[:-1],
                    target_tokens=tokens[1:],
                    mask=[k >= before for k in range(n)],
                    inputs={
                        "advantages": [1.0 - 2 * i] * n,
                        "logprobs": [0.0] * before + list(s.logprobs),
                        "weights": [0.1] * n,
                    },
                )
            )
    return data


@pytest.mark.parametrize("max_tokens", [None, 40])
def test_the_trainers_logprobs_are_the_samplers(model: Path, adapters, max_tokens) -> None:
    found = drawn(sampler(model, adapters), *others(3, 3))
    data = data_of(found)
    engine = trainer(model, max_tokens=max_tokens)
    create(engine)
    done = drain(engine.forward_backward(MINE, data, "ppo", {}))
    samples = [s for op in mine() for s in found[op.op_id].samples]
    want = [tuple(torch.tensor(s.logprobs, dtype=torch.float32).tolist()) for s in samples]
    assert list(done.logprobs) == want
    assert done.metrics["kl_sampler:mean"] == done.metrics["logprob_diff:max"] == 0
    assert drain(engine.forward(MINE, data, adapter=True)).logprobs == done.logprobs


def update(engine: TorchTrain, data: list[Datum], with_threads: Threads) -> tuple[Any, ...]:
    """One step from the same weights: what it reports, the gradient and the new weights."""
    create(engine)
    numbers = cycle(with_threads)
    engine._lanes._on_layer = lambda: torch.set_num_threads(next(numbers))
    torch.set_num_threads(with_threads[0])
    result: ForwardResult = drain(engine.forward_backward(MINE, data, "ppo", {}))
    gradient = engine._run(MINE).grad.clone()
    stepped = engine.optim_step(MINE, AdamParams(learning_rate=0.01, grad_clip_norm=0.01))
    return result, stepped, gradient.tolist(), engine._run(MINE).flat.tolist()


def test_updates_have_the_same_bits_with_any_threads(model: Path, adapters) -> None:
    data = data_of(drawn(sampler(model, adapters)))
    engine = trainer(model)
    want = update(engine, data, (1,))
    for with_threads in ((2,), (1, 2, 3)):
        assert update(engine, data, with_threads) == want
    few = update(engine, data[:1], (1,))
    assert update(engine, data[:1], (2,)) == few


def test_gradients_are_those_of_the_fast_mode(model: Path, adapters) -> None:
    data = data_of(drawn(sampler(model, adapters)))
    found = []
    for mode in (True, False):
        engine = trainer(model, exact=mode)
        create(engine)
        drain(engine.forward_backward(MINE, data, "importance_sampling", {}))
        found.append(engine._run(MINE).grad)
    assert float((found[0] - found[1]).norm() / found[1].norm()) < 1e-5


def test_long_attention_equals_the_fused_kernels() -> None:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, h, 400, 24, generator=g) for h in (3, 1, 1))
    want = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    for start in (0, 131, 399):
        got = exact.causal(q[:, :, start:], k[:, 0], v[:, 0], torch.arange(start, 400))
        torch.testing.assert_close(got, want[:, :, start:])


@pytest.mark.parametrize("width", [1536, 384, 80, 84, 1])
def test_gates_have_the_same_bits_in_any_part_of_a_batch(width: int) -> None:
    x = torch.randn(300, 2 * width, generator=torch.Generator().manual_seed(0))
    gate = x.chunk(2, -1)[0]
    want = exact.silu(gate)
    torch.testing.assert_close(want, F.silu(gate))
    for n_threads in (1, 2, 3, 5, 7):
        torch.set_num_threads(n_threads)
        for n in (1, 2, 23, 88, 205, 299):
            assert torch.equal(exact.silu(gate[:n]), want[:n]), (n_threads, n)


def test_no_memory_is_no_reason_for_other_bits(tiny: Path, monkeypatch) -> None:
    engine = trainer(tiny)
    create(engine)
    tokens = list(range(20))
    datum = Datum(input_tokens=tokens[:-1], target_tokens=tokens[1:], mask=[True] * 19)

    def starving(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(own_module, "logprobs", starving)
    with pytest.raises(EngineError, match="halves of it would have other bits: free memory"):
        drain(engine.forward_backward(MINE, [datum, datum], "cross_entropy", {}))


def not_so(_: int) -> bool:
    return False


@pytest.mark.parametrize("make", [trainer, lambda model, **o: sampler(model, {}, **o)])
def test_where_it_cannot_be_it_is_refused(
    make: Callable[..., Any], tiny: Path, monkeypatch
) -> None:
    with pytest.raises(EngineError, match="deterministic mode is for fp32 on a CPU"):
        make(tiny, dtype=torch.bfloat16)
    monkeypatch.setitem(exact._CHECKS, "softmax", not_so)
    with pytest.raises(EngineError, match=r"this processor and build of torch \(softmax differ\)"):
        make(tiny)


def test_the_check_notices_kernels_that_are_not_exact(monkeypatch) -> None:
    real = torch.bmm
    monkeypatch.setattr(exact, "ROWS", 3)  # few rows: another kernel
    assert not exact._product_holds(1)
    monkeypatch.undo()
    assert exact._product_holds(1)
    monkeypatch.setattr(
        torch, "bmm", lambda a, b: real(a, b) + 1e-7 * (torch.get_num_threads() > 1)
    )
    assert not exact._product_holds(1)


def test_the_check_chooses_kernels_for_which_it_holds() -> None:
    """In a process of its own, as a worker has it: what oneDNN may use is settled once."""
    ask = "import torch; from plait.engines.torch.exact import check_exact as c;"
    env = {key: value for key, value in os.environ.items() if key != exact.ISA}
    command = [sys.executable, "-c", f"{ask} c(torch.float32, 'cpu')"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]


def test_the_check_notices_packed_products_that_differ(monkeypatch) -> None:
    assert exact._linear_holds(1)
    pack = exact.pack_matrix
    monkeypatch.setattr(exact, "pack_matrix", lambda w: pack(w * (1 + 1e-6)))
    assert not exact._linear_holds(1)
