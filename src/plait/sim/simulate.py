"""Simulate: a workload on a cluster under a scheme, on a virtual clock.

The same setting, scheme and costs give the same outcome. *Exact*: an event for each forward step.
*Fluid*: rates that are constant between changes, for long horizons.

Options of a setting, all of which may be left out: ``seed``; ``misjudge`` (estimates are wrong by
up to this factor); ``kv_tokens`` (most of a slice's cache), ``kv_blocks`` (admission's budget),
``most_rows`` (of a slice's batch); ``rollout_from`` (``group``, ``groups`` or ``brought``, see
``placer``); ``lora_groups`` (names of node groups for the LoRA runs of a model, by model);
``lost`` (seconds, by slice: when it fails), ``recover_s``; ``cancel`` (seconds, by job);
``estimated`` (runs are placed by their estimated demand from the first, not cold); ``until_s``
(when to stop); ``draws`` (fluid: so many different rollouts of each job, see ``repeats``).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from plait.core.errors import CapacityError, ConfigError
from plait.core.runs import Stage
from plait.profiles.slowdown import Analytic
from plait.sim.arranged import arranged
from plait.sim.bounds import END_S
from plait.sim.checks import check
from plait.sim.jobs import Job
from plait.sim.lora import LoraPool
from plait.sim.outcome import Outcome
from plait.sim.placer import Placer
from plait.sim.schemes import Scheme
from plait.sim.spec import DeviceGroup, JobSpec, Setting
from plait.sim.worker import SlowdownModel, Worker
from plait.sim.world import CostsOf, World

RECOVER_S = 60.0
"""Until a failed slice is back: starting an engine and loading weights takes about a minute."""


def simulate(
    setting: Setting,
    scheme: Scheme,
    costs_of: CostsOf,
    *,
    mode: Literal["exact", "fluid"] = "exact",
    spans: bool = True,
    slowdown: SlowdownModel | None = None,
    trace: list[dict[str, Any]] | None = None,
    repeats: dict[Any, Any] | None = None,
) -> Outcome:
    """Run the setting's jobs to their end. ``trace`` receives every decision; ``repeats`` is kept
    between simulations of the same jobs under several schemes.

    ConfigError for a setting that makes no sense or can never fit; CapacityError if the scheme
    leaves a job waiting for ever.
    """
    check(setting)
    setting = replace(setting, jobs=tuple(arranged(spec, scheme) for spec in setting.jobs))
    if setting.constants:
        costs_of = partial(costs_of, constants=setting.constants)
    world = World(
        costs_of=costs_of,
        slowdown=slowdown or Analytic(),
        exact=mode == "exact",
        spans=spans,
        trace=trace,
        policy=scheme.name,
        options=setting.options,
        repeats=repeats,
    )
    run = _Run(world, setting, scheme)
    until_s = float(setting.options.get("until_s", float("inf")))
    world.run(min(until_s, END_S))
    return run.outcome(until_s)


class _Run:
    """One simulation."""

    def __init__(self, world: World, setting: Setting, scheme: Scheme) -> None:
        self._world, self._setting, self._scheme = world, setting, scheme
        self._jobs = [
            Job(spec, order=i, heap=world.heap, seed=world.seed, draws=world.draws)
            for i, spec in enumerate(setting.jobs)
        ]
        groups = list(setting.cluster.groups)
        shared = [
            spec for spec in setting.jobs if spec.weights == "lora" and scheme.lora == "shared"
        ]
        others = [spec for spec in setting.jobs if spec not in shared]
        self._pools = self._make_pools(shared, groups, bool(others))
        taken = {group.name for pool_groups in self._pool_groups for group in pool_groups}
        rest = [group for group in groups if group.name not in taken]
        later = [group for group in groups if group.name in taken]
        self._placer = Placer(world, scheme, rest, others, later) if others else None
        for job in self._jobs:
            world.heap.at(job.spec.arrival_s, self._arrive, job)
        by_name = {job.spec.name: job for job in self._jobs}
        for name, at_s in dict(setting.options.get("cancel", {})).items():
            if name not in by_name:
                raise ConfigError(f"cancel: there is no job {name!r}: name one of the workload's")
            world.heap.at(float(at_s), self._cancel, by_name[name])
        for name, at_s in dict(setting.options.get("lost", {})).items():
            world.heap.at(float(at_s), self._lose, name)

    def outcome(self, until_s: float) -> Outcome:
        """What came of it."""
        stuck = [job for job in self._jobs if job.end is None]
        if stuck and self._world.now() > END_S:
            raise ConfigError(
                f"{len(stuck)} jobs are not done after {END_S:g} s ({stuck[0].spec.name} first): "
                "give less work, shorter waits, or constants nearer to 1"
            )
        if stuck and until_s == float("inf"):
            job = stuck[0]
            raise CapacityError(
                f"{self._scheme.name} leaves {len(stuck)} jobs waiting for ever, {job.spec.name} "
                f"first ({job.stage}): give it a cluster that holds them, or another policy"
            )
        world = self._world
        for worker in world.workers:
            for activity in worker.running():
                worker.stop(activity.name)
        groups = self._setting.cluster.groups
        model = self._setting.jobs[0].model
        return Outcome(
            scheme=self._scheme.name,
            jobs=tuple(job.outcome() for job in self._jobs),
            n_devices=sum(group.n_devices for group in groups),
            peak_flops=sum(
                world.costs(model, group.device, 1).peak_flops * group.n_devices for group in groups
            ),
            spans=world.record.spans,
            busy_device_s=sum(worker.busy_s * worker.n_devices for worker in world.workers),
            flops=world.record.flops,
            switch_s=world.record.switch_s,
            brought_device_s=world.record.brought_device_s,
            n_events=world.heap.n_events,
            n_decisions=world.record.n_decisions,
        )

    def _make_pools(
        self, specs: Sequence[JobSpec], groups: list[DeviceGroup], mixed: bool
    ) -> dict[str, LoraPool]:
        models = list(dict.fromkeys(spec.model for spec in specs))
        asked = self._setting.options.get("lora_groups", {})
        by_name = {group.name: group for group in groups}
        named = {name for names in asked.values() for name in names}
        free = [group for group in groups if group.name not in named]
        self._pool_groups: list[list[DeviceGroup]] = []
        pools = {}
        unnamed = [model for model in models if model not in asked]
        for model in models:
            if model in asked:
                unknown = [name for name in asked[model] if name not in by_name]
                if unknown:
                    raise ConfigError(f"lora_groups: there is no node group {unknown[0]!r}")
                mine = [by_name[name] for name in asked[model]]
            else:
                # One group for each model where others need some too; else all, divided.
                n = 1 if mixed else max(1, len(free) // len(unnamed))
                i = unnamed.index(model) * n
                last = model == unnamed[-1] and not mixed
                mine = free[i:] if last else free[i : i + n]
            if not mine:
                raise ConfigError(
                    f"no node group is left for the LoRA jobs of {model}: add a group, or name "
                    "them in lora_groups"
                )
            self._pool_groups.append(mine)
            pools[model] = LoraPool(
                self._world,
                sharing=self._scheme.sharing,
                model=model,
                groups=mine,
                specs=[spec for spec in specs if spec.model == model],
                side_by_side=self._scheme.side_by_side,
                idle=partial(self._give_back, mine),
            )
        return pools

    def _give_back(self, groups: Sequence[DeviceGroup]) -> None:
        """A shared base has served its last run: its node groups are anybody's."""
        if self._placer is not None:
            for group in groups:
                self._placer.open(group)

    def _arrive(self, job: Job) -> None:
        if job.end is not None:
            return
        pool = self._pool_of(job)
        if pool is not None:
            pool.enter(job)
        else:
            assert self._placer is not None
            self._placer.enter(job)

    def _pool_of(self, job: Job) -> LoraPool | None:
        return self._pools.get(job.spec.model) if job.spec.weights == "lora" else None

    def _cancel(self, job: Job) -> None:
        if job.end is None and job.place is None:
            pool = self._pool_of(job)
            if pool is not None:
                pool.over()
            elif self._placer is not None:
                self._placer.cancel(job)
        job.finish(Stage.CANCELLED)

    def _lose(self, name: str) -> None:
        """All slices of that name: one that a later run has may be the same devices."""
        recover_s = float(self._setting.options.get("recover_s", RECOVER_S))
        for worker in self._world.workers:
            if worker.worker_id == name and not worker.lost:
                worker.lose()
                self._world.heap.after(recover_s, self._recover, worker)

    def _recover(self, worker: Worker) -> None:
        worker.recover()
