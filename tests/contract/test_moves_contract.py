"""The contract of rollout engines for samples that move from one to another in flight."""

import pickle
from dataclasses import replace

import pytest
from drive import finish, loaded, run_ops, sample

from plait.core.errors import CapacityError, ModelError, RequestError
from plait.core.ids import OpId


@pytest.mark.parametrize("kv", [True, False])
@pytest.mark.parametrize("n_steps", [0, 1, 4, 11, 17])
def test_a_moved_sample_goes_on_as_if_it_had_stayed(kit, adapters, n_steps: int, kv: bool) -> None:
    """Moved in the queue, in its prefill, while it decodes and when a part of it has ended."""
    free = run_ops(loaded(kit, adapters), sample("x", "a", 1, n=4, max_tokens=20))["x"]
    stop = free.samples[1].tokens[8]
    op = replace(
        sample("x", "a", 1, n=4, max_tokens=20, stop_tokens=(stop,)),
        prompt_logprobs=True,
        topk_logprobs=3,
    )
    want = run_ops(loaded(kit, adapters), op)["x"]
    source, target = loaded(kit, adapters, max_batch_tokens=8, max_seqs=4), loaded(kit, adapters)
    for engine, run_id in ((source, "b"), (target, "a")):
        engine.add(sample("neighbour", run_id, 1, n=3, max_tokens=18, seed=3))
    source.add(op)
    for _ in range(n_steps):
        source.step()
        target.step()
    moved = source.export_sample(OpId("x"), kv=kv)
    assert set(finish(source)[0]) == {"neighbour"}
    target.import_sample(pickle.loads(pickle.dumps(moved)))
    got = finish(target)[0]["x"]
    kit.assert_same(got, want)
    assert [s.stop_reason for s in got.samples] == [s.stop_reason for s in want.samples]
    assert got.prompt_logprobs == pytest.approx(want.prompt_logprobs, abs=1e-4)
    assert [len(s.topk) for s in got.samples] == [len(s.tokens) for s in got.samples]


def test_a_sample_moves_on_and_back(kit, adapters) -> None:
    want = run_ops(loaded(kit, adapters), sample("x", "a", 1, n=2, max_tokens=24))["x"]
    here, there = loaded(kit, adapters), loaded(kit, adapters)
    here.add(sample("x", "a", 1, n=2, max_tokens=24))
    for i in range(20):
        here.step()
        there.import_sample(here.export_sample(OpId("x"), kv=i % 3 > 0))
        here, there = there, here
    kit.assert_same(finish(here)[0]["x"], want)
    assert not there.has_work()


def test_a_sample_that_cannot_be_moved_is_refused_and_nothing_is_lost(kit, adapters) -> None:
    source, target = loaded(kit, adapters), loaded(kit, adapters)
    with pytest.raises(RequestError):
        source.export_sample(OpId("x"), kv=True)
    source.add(sample("x", "a", 1))
    source.step()
    moved = source.export_sample(OpId("x"), kv=True)
    with pytest.raises(RequestError):
        source.export_sample(OpId("x"), kv=True)
    with pytest.raises(RequestError, match="version 1 of a is not loaded"):
        kit.rollout().import_sample(moved)
    elsewhere = replace(moved.shape, hidden_size=moved.shape.hidden_size + 1)
    with pytest.raises(ModelError):
        target.import_sample(replace(moved, shape=elsewhere))
    with pytest.raises(RequestError):
        target.import_sample(replace(moved, samples=()))
    with pytest.raises(CapacityError):
        loaded(kit, adapters, n_blocks=2).import_sample(moved)
    assert not target.has_work()
    target.import_sample(replace(moved, shape=replace(moved.shape, name="elsewhere")))
    with pytest.raises(RequestError):
        target.import_sample(moved)
    want = run_ops(loaded(kit, adapters), sample("x", "a", 1))["x"]
    kit.assert_same(finish(target)[0]["x"], want)
