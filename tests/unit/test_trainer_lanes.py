"""Lanes: micro-batches side by side, whose results do not depend on how many really were."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
import torch
from random_models import random_model
from test_trainer_learning import OPS, alone, assert_equal, bad, grads, made
from test_trainer_prefix import groups
from trainer_support import drain, n_seqs, relative_l2

from plait.core.errors import EngineError
from plait.core.ids import RunId
from plait.engines.torch import own as module
from plait.engines.torch.lanes import Lanes
from plait.engines.torch.train import packing

WAIT_S = 10


def lend(*cores: int) -> Callable[[], None]:
    """Cores that the owner has, before one layer after the other."""
    numbers: Iterator[int] = cycle(cores)
    return lambda: torch.set_num_threads(next(numbers))


def layers(name: str, log: list[str], n: int = 3) -> Callable[[Callable[[], None]], str]:
    """A work of ``n`` layers."""

    def work(on_layer: Callable[[], None]) -> str:
        for _ in range(n):
            on_layer()
            log.append(name)
        return name

    return work


def test_with_two_cores_two_are_under_way_at_once() -> None:
    meet = threading.Barrier(2)

    def work(on_layer: Callable[[], None]) -> int:
        for _ in range(3):
            on_layer()
            meet.wait(WAIT_S)
        return torch.get_num_threads()

    for cores, want in ((2, [1, 1]), (5, [3, 2])):
        assert [get() for get in Lanes(2, lend(cores)).run([work, work])] == want
        assert torch.get_num_threads() == cores


def test_with_one_core_they_go_one_after_the_other() -> None:
    log: list[str] = []
    made = Lanes(2, lend(1)).run([layers("a", log), layers("b", log)])
    assert [get() for get in made] == ["a", "b"]
    assert log == ["a"] * 3 + ["b"] * 3


def test_a_core_that_is_taken_away_stops_the_last_lane_at_its_next_layer() -> None:
    cores, met, seen = [2], threading.Barrier(2), []

    def first(on_layer: Callable[[], None]) -> None:
        on_layer()
        met.wait(WAIT_S)
        cores[0] = 1
        for _ in range(4):
            on_layer()
            seen.append("first")

    def second(on_layer: Callable[[], None]) -> None:
        on_layer()
        met.wait(WAIT_S)
        while cores[0] == 2:
            pass
        on_layer()
        seen.append("second")

    for get in Lanes(2, lambda: torch.set_num_threads(cores[0])).run([first, second]):
        get()
    assert seen == ["first"] * 4 + ["second"]


def test_what_one_raises_is_its_own() -> None:
    def broken(on_layer: Callable[[], None]) -> str:
        on_layer()
        raise RuntimeError("shape mismatch")

    lanes = Lanes(2, lend(2))
    for _ in range(2):
        one, other = lanes.run([broken, layers("b", [])])
        with pytest.raises(RuntimeError, match="shape mismatch"):
            one()
        assert other() == "b"


def test_no_lane_goes_on_when_the_owner_gives_up() -> None:
    log: list[str] = []
    turns = iter([None] * 4)

    def on_layer() -> None:
        torch.set_num_threads(1)
        next(turns)

    lanes = Lanes(2, on_layer)
    with pytest.raises(StopIteration):
        lanes.run([layers("a", log, 99), layers("b", log, 99)])
    assert len(log) < 5
    turns = iter([None] * 99)
    assert [get() for get in lanes.run([layers("a", log), layers("b", log)])] == ["a", "b"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("lanes") / "model", "llama")


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes for micro-batches of any size."""
    monkeypatch.setattr(packing, "LANE_TOKENS", 1)
    monkeypatch.setattr(packing, "AGAIN", 1.0)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("exact", [False, True])
def test_gradients_have_the_same_bits_whatever_cores_are_lent(model: Path, exact: bool) -> None:
    found, results = [], []
    for cores in ((2,), (1,), (2, 1, 1, 2, 2)):
        engine = made(model, max_tokens=90, exact=exact, on_layer=lend(*cores))
        results.append(drain(engine.forward_backward_many(OPS)))
        found.append(grads(engine))
    assert results[0] == results[1] == results[2]
    for name, grad in found[0].items():
        assert grad.any()
        assert torch.equal(grad, found[1][name])
        assert torch.equal(grad, found[2][name])


@pytest.mark.usefixtures("_small")
def test_gradients_and_logprobs_are_those_of_one_lane(model: Path) -> None:
    want, results = alone(model, lanes=1)
    engine = made(model, max_tokens=90, on_layer=lend(2))
    assert_equal(drain(engine.forward_backward_many(OPS)), results)
    for name, grad in grads(engine).items():
        assert relative_l2(grad, want[name]) <= 1e-6
    asked = RunId("a"), OPS[0].data
    theirs = drain(made(model, lanes=1).forward(*asked, adapter=True)).logprobs
    ours = drain(engine.forward(*asked, adapter=True)).logprobs
    for a, b in zip(ours, theirs, strict=True):
        assert a == pytest.approx(b, abs=1e-5)


@pytest.mark.usefixtures("_small")
def test_a_runs_failure_is_its_own_in_a_lane_too(model: Path) -> None:
    want, results = alone(model, (OPS[0], OPS[2]))
    engine = made(model, max_tokens=90, on_layer=lend(2))
    outcomes = drain(engine.forward_backward_many([OPS[0], bad("infinite loss"), OPS[2]]))
    assert isinstance(outcomes[1], EngineError)
    assert_equal((outcomes[0], outcomes[2]), results)
    found = grads(engine)
    assert not found["b"].any()
    for name in ("a", "c"):
        assert relative_l2(found[name], want[name]) <= 1e-6


@pytest.mark.usefixtures("_small")
def test_where_memory_is_short_one_goes_at_a_time(model: Path, monkeypatch) -> None:
    ops = [replace(OPS[0], data=tuple(groups(4)))]
    want, results = alone(model, ops, lanes=1)
    engine = made(model, max_tokens=90, on_layer=lend(2))
    under_way, most, lock, real = 0, [], threading.Lock(), module.logprobs

    def starving(weights, rope, batch, params, on_layer, **options):
        nonlocal under_way
        with lock:
            under_way += 1
            most.append((under_way, n_seqs(batch)))
            short = under_way > 1  # not asked later: the other may have ended by then
        try:
            on_layer()
            if short:
                raise torch.OutOfMemoryError("out of memory")
            return real(weights, rope, batch, params, on_layer, **options)
        finally:
            with lock:
                under_way -= 1

    monkeypatch.setattr(module, "logprobs", starving)
    assert_equal(drain(engine.forward_backward_many(ops)), results)
    assert max(n for n, _ in most[:2]) == 2
    assert all(n == 1 for n, _ in most[2:])
    assert sum(n for _, n in most) > len(ops[0].data)
    assert relative_l2(grads(engine)["a"], want["a"]) <= 1e-6


@pytest.mark.usefixtures("_small")
def test_a_pass_that_is_given_up_within_a_round_adds_nothing(model: Path) -> None:
    engine = made(model, max_tokens=90, on_layer=lend(2))
    work = engine.forward_backward_many(OPS)
    next(work)
    work.close()
    assert not any(grad.any() for grad in grads(engine).values())
