"""Samples that move between engines in the middle of their generation."""

import pickle
import random
from pathlib import Path

import pytest
from random_models import private_cache, random_model

from plait.core.ids import OpId, RunId
from plait.core.operations import Sample, SampleResult, SamplingParams, StopReason
from plait.engines.moved import Moved
from plait.engines.torch.rollout import TorchRollout

PROMPT = tuple(b"The quick brown fox jumps")
NOISE = 2e-5


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("model"))


def engine(model: Path, **options) -> TorchRollout:
    with private_cache(model):
        return TorchRollout(model, **{"n_blocks": 256, "block_size": 4} | options)


def op(name: str, *, prompt=PROMPT, n: int = 1, **options) -> Sample:
    return Sample(
        op_id=OpId(name),
        run_id=RunId("a"),
        version=None,
        prompt=prompt,
        n=n,
        params=SamplingParams(**{"max_tokens": 20, "seed": 5} | options),
    )


def finish(e: TorchRollout, *ops: Sample) -> tuple[dict[str, SampleResult], int, int]:
    """Results, prompt tokens computed, most blocks used."""
    for o in ops:
        e.add(o)
    results, n_prefill, n_blocks = {}, 0, 0
    while e.has_work():
        step = e.step()
        results.update(step.finished)
        n_prefill += step.n_prefill_tokens
        n_blocks = max(n_blocks, step.kv_blocks_used)
    return results, n_prefill, n_blocks


def begun(model: Path, o: Sample, n_steps: int = 7, *, kv: bool = True, **options) -> Moved:
    e = engine(model, **options)
    e.add(o)
    for _ in range(n_steps):
        e.step()
    return e.export_sample(o.op_id, kv=kv)


def assert_close(got: SampleResult, want: SampleResult) -> None:
    for a, b in zip(got.samples, want.samples, strict=True):
        assert (a.tokens, a.stop_reason) == (b.tokens, b.stop_reason)
        assert a.logprobs == pytest.approx(b.logprobs, abs=NOISE)


@pytest.mark.parametrize("n_steps", [1, 7])
def test_copied_keys_and_values_spare_the_prefill_and_are_shared_as_before(
    model, n_steps: int
) -> None:
    want, _, n_blocks = finish(engine(model), op("x", n=5))
    e = engine(model)
    e.import_sample(begun(model, op("x", n=5), n_steps))
    got, n_prefill, n_blocks_there = finish(e)
    assert (n_prefill, n_blocks_there) == (0, n_blocks)
    assert_close(got["x"], want["x"])
    assert e.step().kv_blocks_used == 0


def test_without_them_the_sample_is_computed_again(model) -> None:
    want, _, _ = finish(engine(model), op("x", n=2))
    e = engine(model)
    e.import_sample(begun(model, op("x", n=2), kv=False))
    results, n_prefill, _ = finish(e)
    assert n_prefill >= len(PROMPT)
    assert_close(results["x"], want["x"])


@pytest.mark.parametrize("options", [{"block_size": 8}, {"n_blocks": 18, "max_seqs": 4}])
def test_a_cache_that_is_cut_otherwise_or_full_computes_again(model, options: dict) -> None:
    want, _, _ = finish(engine(model), op("x", n=3), op("y", prompt=PROMPT[::-1], n=3))
    e = engine(model, **options)
    e.add(op("y", prompt=PROMPT[::-1], n=3))
    for _ in range(9):
        e.step()
    e.import_sample(begun(model, op("x", n=3)))
    results, n_prefill, _ = finish(e)
    assert n_prefill >= len(PROMPT)
    for name in "xy":
        assert_close(results[name], want[name])


def test_what_came_along_serves_later_prompts(model) -> None:
    e = engine(model)
    e.import_sample(begun(model, op("x")))
    finish(e)
    assert finish(e, op("later"))[1] <= 4


def test_a_stop_string_may_begin_here_and_end_there(model) -> None:
    (free,) = finish(engine(model), op("x", max_tokens=40, seed=3))[0]["x"].samples
    printable = [i for i, t in enumerate(free.tokens) if 33 <= t < 127]
    i = next(i for i in printable if i > 4 and free.tokens[i + 1] < 127)
    stop = bytes(free.tokens[i : i + 2]).decode()
    o = op("x", max_tokens=40, seed=3, stop=(stop,))
    want = finish(engine(model), o)[0]["x"]
    moved = begun(model, o, len(want.samples[0].tokens) - 1)
    assert moved.samples[0].tokens == want.samples[0].tokens[:-1]
    e = engine(model)
    e.import_sample(moved)
    assert_close(finish(e)[0]["x"], want)
    assert want.samples[0].stop_reason is StopReason.STOP


def test_the_state_survives_pickle(model) -> None:
    moved = begun(model, op("x", n=2, stop=("zz",), stop_tokens=(1,)))
    assert moved.kv is not None
    assert pickle.loads(pickle.dumps(moved)) == moved
    assert pickle.loads(pickle.dumps(begun(model, op("x"), kv=False))).kv is None


def test_many_samples_moved_at_random_all_go_on_alike(model) -> None:
    """Figure B9 in small."""
    rng = random.Random(1)
    ops = [
        op(f"{i}", prompt=PROMPT[: 4 + i % 20], seed=i, temperature=float(i % 4 > 0))
        for i in range(60)
    ]
    want, _, _ = finish(engine(model), *ops)
    source, target = engine(model), engine(model)
    got: dict[str, SampleResult] = {}
    due: dict[int, list[Sample]] = {}
    for o in ops:
        due.setdefault(rng.randrange(1, 18), []).append(o)
        source.add(o)
    for i in range(18):
        for o in due.get(i, ()):
            moved = source.export_sample(o.op_id, kv=rng.random() < 0.5)
            target.import_sample(pickle.loads(pickle.dumps(moved)))
        for e in (source, target):
            got.update(e.step().finished)
    got.update(finish(target)[0])
    assert not source.has_work()
    for o in ops:
        assert_close(got[o.op_id], want[o.op_id])
