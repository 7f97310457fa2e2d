"""Replay: a recorded launch simulated, under its own policy or another.

``setting_of`` turns a launch into a setting with exactly the work that its jobs did. ``predict``
says how long that work takes under a policy, with rates (``fit``) and overheads measured in *other*
launches: of the same jobs one at a time, on all cores and on half. So it is a prediction: nothing
of the launch that is predicted goes into it but its jobs and its policy.

An *overhead* is what a step of a job alone takes longer than its simulation: the controller, the
messages, the files. It is charged off the devices, after the rollout: the median over the steps of
the launches in which each worker could have all cores.

Left to others: that recorded decisions are made again (``decisions``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from plait.core.errors import ConfigError
from plait.obs.launch import Launch
from plait.policies import registry
from plait.sim.fit import DEVICE, Rates, fit
from plait.sim.outcome import Outcome
from plait.sim.recorded import RecordedJob, recorded_jobs
from plait.sim.schemes import Scheme
from plait.sim.simulate import simulate
from plait.sim.spec import Cluster, DeviceGroup, JobSpec, Setting

MACHINE = "machine"
"""The one node group of a replay: all cores are one device that its workers share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A launch as it was and as it was predicted, seconds from the first job's entry."""

    policy: str
    live_s: float
    predicted_s: float
    live_jobs_s: Mapping[str, float]
    """End of each job's last step or evaluation."""
    predicted_jobs_s: Mapping[str, float]
    setting: Setting
    """What was simulated."""
    outcome: Outcome
    rates: Rates
    overheads_s: Mapping[str, float]
    """Of a training step, by job."""

    @property
    def error(self) -> float:
        """Signed, relative to the live makespan."""
        return self.predicted_s / self.live_s - 1.0


def setting_of(launch: Launch, *, model: str, specs: Sequence[JobSpec] = ()) -> Setting:
    """The launch's jobs (or ``specs`` in their place) on its machine."""
    jobs = tuple(specs) or tuple(job.spec for job in recorded_jobs(launch, model=model))
    settings: Mapping[str, Any] = launch.info.get("settings") or {}
    workers = max(1, int(settings.get("rollout_workers") or 1))
    options: dict[str, Any] = {}
    kv_blocks, block = int(settings.get("kv_blocks") or 0), int(settings.get("block_size") or 16)
    if kv_blocks:
        options["kv_tokens"] = kv_blocks * block
    if settings.get("max_seqs"):
        options["most_rows"] = int(settings["max_seqs"]) * workers
    first_s = min(job.arrival_s for job in jobs)
    return Setting(
        cluster=Cluster(groups=(DeviceGroup(name=MACHINE, device=DEVICE, n_devices=1),)),
        jobs=tuple(replace(job, arrival_s=job.arrival_s - first_s) for job in jobs),
        options=options,
    )


def scheme_of(launch: Launch) -> Scheme:
    """The policy that the launch ran under."""
    name = str(launch.info["policy"])
    options = dict(launch.info.get("policy_options") or {})
    return Scheme(name=name, sharing=registry.make(name, **options))


def predict(
    launch: Launch, alone: Sequence[Launch], *, model: str, scheme: Scheme | None = None
) -> Prediction:
    """Predict ``launch`` from launches of the same jobs one at a time; the first of ``alone`` gives
    the work, those with ``elastic`` cores the overheads, all of them the rates.

    ConfigError if a job of ``launch`` is not among theirs.
    """
    elastic = [one for one in alone if (one.info.get("settings") or {}).get("elastic", True)]
    if not elastic:
        raise ConfigError("a prediction needs a launch of the same jobs run one at a time")
    rates = fit(alone, model=model)
    runs = [{job.spec.name: job for job in recorded_jobs(one, model=model)} for one in elastic]
    known = runs[0]
    here = recorded_jobs(launch, model=model)
    missing = [job.spec.name for job in here if job.spec.name not in known]
    if missing:
        raise ConfigError(f"{elastic[0].root} has no job {missing[0]!r}: run the same jobs alone")
    specs, overheads_s = [], {}
    for job in here:
        spec, overheads_s[job.spec.name] = _with_overheads(
            [run[job.spec.name] for run in runs if job.spec.name in run], elastic[0], rates
        )
        steps = min(len(spec.recorded), len(job.spec.recorded))
        specs.append(
            replace(
                spec,
                arrival_s=job.spec.arrival_s,
                recorded=spec.recorded[:steps],
                steps=len(job.spec.recorded),
            )
        )
    setting = setting_of(launch, model=model, specs=specs)
    outcome = simulate(
        setting, scheme or scheme_of(launch), rates.costs(), slowdown=rates.slowdown()
    )
    first_s = min(job.spec.arrival_s for job in here)
    live_jobs_s = {job.spec.name: job.ends_s[-1] - first_s for job in here}
    return Prediction(
        policy=outcome.scheme,
        live_s=max(live_jobs_s.values()),
        predicted_s=max(job.finished_s for job in outcome.jobs),
        live_jobs_s=live_jobs_s,
        predicted_jobs_s={job.name: job.finished_s for job in outcome.jobs},
        setting=setting,
        outcome=outcome,
        rates=rates,
        overheads_s=overheads_s,
    )


def _with_overheads(
    runs: Sequence[RecordedJob], launch: Launch, rates: Rates
) -> tuple[JobSpec, float]:
    """The job's work with what each kind of step took longer than its simulation alone; ``runs``
    are of the same job."""
    spec = replace(runs[0].spec, arrival_s=0.0)
    # With evaluations as steps without an update, so that the end of each is told.
    counted = tuple(replace(step, evaluates=False) for step in spec.recorded)
    outcome = simulate(
        setting_of(launch, model=rates.model, specs=[replace(spec, recorded=counted)]),
        scheme_of(launch),
        rates.costs(),
        slowdown=rates.slowdown(),
        spans=False,
    )
    ends_s = outcome.jobs[0].step_ends_s
    simulated = [end - start for start, end in zip((0.0, *ends_s), ends_s, strict=False)]
    more: dict[bool, list[float]] = {True: [], False: []}
    for job in runs:
        for step, live_s, simulated_s in zip(
            spec.recorded, job.durations_s, simulated, strict=False
        ):
            more[step.evaluates].append(live_s - simulated_s)
    typical_s = {kind: max(0.0, median(values)) for kind, values in more.items() if values}
    steps = tuple(replace(step, reward_s=typical_s[step.evaluates]) for step in spec.recorded)
    return replace(spec, recorded=steps), typical_s.get(False, 0.0)
