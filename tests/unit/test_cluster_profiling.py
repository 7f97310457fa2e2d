"""Profiling: what is asked for, and what is made of the times."""

from dataclasses import replace

import pytest

from plait.cli.profile import profile_command
from plait.cluster.profiling import QUICK, Profiling, splits
from plait.core.errors import EngineError
from plait.profiles.table import Table, load
from plait.runtime.settings import Settings
from plait.sim.costs.measured import read_profile

PLAN = replace(QUICK, rows=(1, 8), pair_rows=(8,))


class Machine:
    """Every unit is a millisecond for each token over the threads, training one more; half as much
    again beside another."""

    def __init__(self, lost=()):
        self.asked, self._lost = [], lost

    def __call__(self, asks):
        self.asked.append(asks)
        return [self._times(ask, len(asks)) for ask in asks]

    def _times(self, ask, n):
        if (ask.what, ask.threads) in self._lost:
            return ()
        tokens = ask.rows if ask.what.startswith("decode") else ask.rows * ask.tokens
        seconds = (tokens / ask.threads + (ask.what == "train")) * 1e-3
        return (seconds * (1.5 if n > 1 else 1.0),) * 3


def profile(n_cores=4, machine=None, device="cpu"):
    found = Profiling(PLAN, model="tiny", device=device, cores=range(n_cores))
    machine = machine or Machine()
    said = []
    result = found.run(machine, said.append)
    return found, machine, result, said


def test_splits_leave_each_a_core():
    assert splits(1) == splits(0) == ()
    assert splits(2) == (1,)
    assert splits(6) == (1, 2, 4, 5)


def test_costs_by_hand():
    _, _, result, _ = profile()
    costs = result.costs
    assert [(p.rows, p.context, p.seconds) for p in costs.decode] == [
        (1, 32, 0.25e-3),
        (8, 256, 2e-3),
    ]
    assert costs.prefill_tokens_per_s == pytest.approx(4000)
    assert costs.train_tokens_per_s == pytest.approx(4000)
    assert costs.train_overhead_s == pytest.approx(1e-3)
    assert costs.adapter_step_s == 0.0


def test_every_pair_and_split_and_no_core_twice():
    found, machine, result, said = profile()
    assert len(said) == found.n_measurements
    for asks in machine.asked:
        cores = [core for ask in asks for core in ask.cores]
        assert len(cores) == len(set(cores))
        assert all(len(ask.cores) == ask.threads for ask in asks)
    alone = {(p.own, p.own_tokens, p.compute): p.slowdown for p in result.points if not p.beside}
    assert alone["rollout", 8, 0.5] == pytest.approx(2.0)
    beside = {(p.own, p.compute): p.slowdown for p in result.points if p.beside == "train"}
    assert beside["rollout", 0.25] == pytest.approx(6.0)
    assert beside["rollout", 0.75] == pytest.approx(2.0)
    assert Table(result.points)


def test_a_device_without_shares_has_no_points():
    _, machine, result, _ = profile(n_cores=0, device="cuda")
    assert result.points == ()
    assert all(len(asks) == 1 for asks in machine.asked)


def test_what_never_fits_its_window_is_told():
    _, _, result, _ = profile(machine=Machine(lost={("train", 1)}))
    assert any("train 128 on 1" in what for what in result.skipped)
    with pytest.raises(EngineError, match="--quick"):
        profile(machine=Machine(lost={("train", 4)}))


@pytest.mark.slow
def test_this_machine(tmp_path):
    """The verb, on the tiny model: two files that their readers take."""
    asked = Settings(cores=2, device="cpu")
    assert profile_command("tiny", asked=asked, out=tmp_path, quick=True, as_json=False) == 0
    costs = read_profile(tmp_path / "costs.json")
    assert costs.model == "tiny"
    assert all(p.seconds > 0 for p in costs.decode)
    assert Table(load(tmp_path / "slowdown.json"))
