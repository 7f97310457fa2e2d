"""What a long simulation does not hold on to, and does not compute again."""

import gc
import weakref
from itertools import pairwise

from sim_support import SimpleCosts, job, setting

from plait.core.runs import Stage
from plait.policies import registry
from plait.sim import engine as engines
from plait.sim.heap import Heap
from plait.sim.jobs import Job
from plait.sim.lengths import draw_step
from plait.sim.schemes import Scheme, isolated
from plait.sim.simulate import _Run, simulate
from plait.sim.spec import Cluster, DeviceGroup, Setting
from plait.sim.world import World


def test_a_run_that_is_over_leaves_no_engine_behind(monkeypatch) -> None:
    made: list[weakref.ref] = []
    begin = engines.Engine.__init__

    def counted(self, **given) -> None:
        made.append(weakref.ref(self))
        begin(self, **given)

    monkeypatch.setattr(engines.Engine, "__init__", counted)
    spec = job(weights="full", rollout_devices=1, train_devices=1, steps=1)
    world = World(
        costs_of=SimpleCosts(),
        slowdown=lambda *_: 1.0,
        exact=False,
        spans=False,
        trace=None,
        policy="isolated",
        options={},
    )
    run = _Run(world, setting(spec, devices=2), isolated())
    world.run()
    assert run._jobs[0].end is Stage.DONE
    gc.collect()
    assert len(made) == 1
    assert made[0]() is None
    assert len(world.workers) == 2, "what its devices have done still counts"


def test_a_view_is_the_same_object_until_the_run_changes() -> None:
    heap = Heap()
    run = Job(job(), order=0, heap=heap, seed=0)
    before = run.view()
    assert run.view() is before
    run.set_stage(rollout=Stage.ROLLOUT)
    assert run.view() is not before
    assert run.view().stage is Stage.ROLLOUT
    for change in (
        lambda: run.served(1.0),
        lambda: setattr(run, "alone_s", 2.0),
        lambda: setattr(run, "since_s", 3.0),
        lambda: run.step_ends_s.append(4.0),
    ):
        before = run.view()
        change()
        assert run.view() != before


def test_a_draw_is_summed_up_once() -> None:
    draw = draw_step(job(), 0)
    total = draw.total_tokens(draw.group_size)
    assert total == sum(draw.tokens(i, draw.group_size) for i in range(draw.n_samples))
    assert "_beyond_prompts" in vars(draw)
    gc.collect()
    assert not any(map(gc.is_tracked, draw.responses)), "thousands for the collector to go through"


def test_only_the_group_that_a_run_leaves_is_told_anew(monkeypatch) -> None:
    views = []
    scheme = Scheme(
        name="split",
        sharing=registry.make(),
        placement=isolated().placement,
        full="isolated",
    )
    decide = type(scheme.placement).decide

    def seen(self, view, state, now):
        views.append({group.group_id: group for group in view.groups})
        return decide(self, view, state, now)

    monkeypatch.setattr(type(scheme.placement), "decide", seen)
    jobs = [
        job(name=f"j{i}", weights="full", rollout_devices=1, train_devices=2, steps=steps)
        for i, steps in enumerate((1, 3, 9, 9, 1))
    ]
    train = [DeviceGroup(name=f"g{i}", device="unit", n_devices=2) for i in range(3)]
    rollout = DeviceGroup(name="rollout-0", device="unit", n_devices=9)
    cluster = Cluster(groups=(*train, rollout))
    simulate(Setting(cluster=cluster, jobs=tuple(jobs)), scheme, SimpleCosts())
    # j2 is on g2 while j1 ends and leaves g1 free.
    before, after = next(
        (a, b) for a, b in pairwise(views) if not a["g1"].n_devices and b["g1"].n_devices
    )
    assert after["g2"].n_devices == 0
    assert after["g2"] is before["g2"]


def test_the_garbage_collector_forgets_what_is_drawn() -> None:
    """Thousands of draws are kept at once: it would go through all their samples each time."""
    for turns in ((1.0,), (0.5, 0.5)):
        draw = draw_step(job(turns=turns, groups=4, samples=4), 0)
        for _ in range(2):  # the samples' own, then those of them
            gc.collect()
        parts = (draw.prompts, draw.responses, draw.waits_s, draw.results)
        assert not any(map(gc.is_tracked, parts))
