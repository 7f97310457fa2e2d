"""A step in two halves: how it is divided, and that what is drawn stays the same."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from random_models import random_model
from test_engine_head import BLOCKS, HEAD_ALONE, assert_close, crowd, engine, finish, op
from test_engine_head import adapters as adapters
from test_engine_schedule import Desk

from plait.core.errors import EngineError
from plait.core.ids import RunId
from plait.engines.torch import rollout
from plait.engines.torch.arch import read_arch
from plait.engines.torch.halves import halves
from plait.engines.torch.kv import KV
from plait.engines.torch.rollout import TorchRollout
from plait.engines.torch.schedule import Plan


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("model") / "model", "llama")


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rollout, "LEAST_ROWS", 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def desk(prompts: dict[str, list[list[int]]]) -> Desk:
    made = Desk(256, max_seqs=64, tokens=512)
    for group, (run, mine) in enumerate(prompts.items()):
        for prompt in mine:
            made.add(run, prompt, group=group + 1)
    return made


def rows(plan: Plan) -> int:
    return len(plan.decodes) + sum(c.n for c in plan.chunks)


def test_halves_are_of_like_size_and_cut_one_adapter_at_most() -> None:
    d = desk({run: [[1, 2, 3]] * 5 for run in "abc"})
    d.step()
    plan = d.scheduler.plan()
    first, second = halves(plan, 7)
    assert [len(first.decodes), len(second.decodes)] == [7, 8]
    assert {*first.decodes, *second.decodes} == set(plan.decodes)
    runs = [{s.policy[0] for s in half.decodes} for half in (first, second)]
    assert runs == [{"a", "b"}, {"b", "c"}]
    d.scheduler.advance(plan)
    for s in plan.decodes:
        s.draw(7, -1.0)
    again = halves(d.scheduler.plan(), 7)
    assert [half.decodes for half in again] == [first.decodes, second.decodes]


def test_few_rows_stay_together() -> None:
    d = desk({"a": [[1, 2, 3]] * 6})
    d.step()
    plan = d.scheduler.plan()
    assert halves(plan, 4) == (plan,)
    assert len(halves(plan, 3)) == 2


def test_prompts_are_divided_and_take_their_samples_along() -> None:
    d = desk({run: [[i] * n] * 3 for i, (run, n) in enumerate({"a": 9, "b": 8, "c": 16}.items())})
    plan = d.scheduler.plan()
    parts = halves(plan, 4)
    assert [[c.n for c in part.chunks] for part in parts] == [[16], [9, 8]]
    for part in parts:
        for chunk in part.chunks:
            assert part.forks[chunk.sequence] == plan.forks[chunk.sequence]


def test_decoding_rows_make_up_for_a_longer_prompt() -> None:
    d = desk({"a": [[1, 2, 3]] * 12})
    d.step()
    d.add("b", [5] * 8, group=99)
    first, second = halves(d.scheduler.plan(), 4)
    assert rows(first) == rows(second) == 10
    assert first.chunks
    assert not second.chunks


def test_a_prompt_that_is_most_of_a_step_is_computed_by_all() -> None:
    d = desk({"a": [[1, 2, 3]] * 6})
    d.step()
    d.add("b", [5] * 30, group=99)
    plan = d.scheduler.plan()
    assert halves(plan, 2) == (plan,)


@pytest.mark.usefixtures("two_threads")
def test_what_is_drawn_and_scored_is_the_same(
    model: Path, adapters: dict[RunId, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = finish(engine(model, adapters, lanes=1), *crowd())
    by_thread: set[str] = set()
    compute = TorchRollout._compute

    def watched(self, batch, on_layer):
        by_thread.add(threading.current_thread().name)
        return compute(self, batch, on_layer)

    monkeypatch.setattr(TorchRollout, "_compute", watched)
    divided = finish(engine(model, adapters), *crowd())
    assert {"lane_0", "lane_1"} <= by_thread
    assert divided.keys() == whole.keys()
    for name, result in divided.items():
        assert_close(result, whole[name])


@pytest.mark.usefixtures("two_threads")
def test_one_core_takes_a_step_whole(model: Path, adapters: dict[RunId, str]) -> None:
    calls: list[str] = []
    e = engine(model, adapters, on_layer=lambda: calls.append(threading.current_thread().name))
    n_layers = read_arch(model).n_layers
    e.add(op("a", BLOCKS, n=8))
    e.step()
    torch.set_num_threads(1)
    calls.clear()
    e.step()
    assert len(calls) == n_layers
    torch.set_num_threads(2)
    calls.clear()
    e.step()
    assert len(calls) > n_layers


@pytest.mark.usefixtures("two_threads")
def test_a_half_that_fails_costs_no_sample(
    model: Path, adapters: dict[RunId, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = finish(engine(model, adapters, lanes=1), *crowd())
    e = engine(model, adapters)
    for o in crowd():
        e.add(o)
    e.step()
    compute, failed = TorchRollout._compute, []

    def failing(self, batch, on_layer):
        if not failed and any(s.policy[0] == HEAD_ALONE for s in batch.segments):
            failed.append(batch)
            raise RuntimeError("out of memory")
        return compute(self, batch, on_layer)

    monkeypatch.setattr(TorchRollout, "_compute", failing)
    with pytest.raises(EngineError, match="its samples are kept"):
        e.step()
    assert failed
    for name, result in finish(e).items():
        assert_close(result, whole[name])


def test_each_thread_gathers_into_its_own_memory(model: Path) -> None:
    kv = KV(read_arch(model), 8, block_size=4, dtype=torch.float32, device="cpu")
    for layer in kv._layers:
        layer.copy_(torch.arange(9.0)[None, None, :, None, None].expand_as(layer))
    k, _ = kv.gather(0, torch.tensor([1, 2]), 1)
    other = threading.Thread(target=kv.gather, args=(0, torch.tensor([5, 6]), 1))
    other.start()
    other.join()
    assert k.unique().tolist() == [1.0, 2.0]


@pytest.mark.usefixtures("two_threads")
def test_a_half_knows_the_blocks_of_steps_that_were_whole(
    model: Path, adapters: dict[RunId, str]
) -> None:
    asked = op("a", BLOCKS, n=8, max_tokens=40)
    want = finish(engine(model, adapters, lanes=1), asked)["a"]
    made = engine(model, adapters)
    made.add(asked)
    found, n = {}, 0
    while made.has_work():
        torch.set_num_threads(1 if n // 6 % 2 else 2)
        found.update(made.step().finished)
        n += 1
    assert_close(found["a"], want)
