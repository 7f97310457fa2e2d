"""Pairs: pipelines side by side under each scheme, as throughput, stretch and utilisation."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.sim import schemes
from benchmarks.sim.sensitivity import COMMITTED, Models
from plait.core.errors import ConfigError
from plait.sim.outcome import JobOutcome, Outcome
from plait.sim.schemes import Scheme
from plait.sim.simulate import simulate
from plait.sim.spec import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What one scheme makes of a setting."""

    tokens_per_s: float
    """Prompt and response tokens of all pipelines (JigsawRL §5.2)."""
    step_s: dict[str, float]
    """Mean time of a step, by job."""
    mfu: float
    together: bool
    """All pipelines began at once; otherwise there was no room for it."""

    def stretch(self, alone: "Pair") -> list[float]:
        """Of each job's steps, against devices of its own."""
        return [self.step_s[name] / alone.step_s[name] for name in self.step_s]


def run(setting: Setting, scheme: Scheme, *, steps: int, models: Models = COMMITTED) -> Pair:
    """Simulate; ConfigError where a scheme has no room for a job."""
    outcome = simulate(
        replace(setting, jobs=tuple(replace(spec, steps=steps) for spec in setting.jobs)),
        scheme,
        models.costs_of,
        mode="fluid",
        spans=False,
        slowdown=models.slowdown,
    )
    return measured(outcome)


def measured(outcome: Outcome) -> Pair:
    """Of a finished simulation."""
    return Pair(
        tokens_per_s=sum(job.tokens for job in outcome.jobs) / outcome.makespan_s,
        step_s={job.name: _step_s(job) for job in outcome.jobs},
        mfu=outcome.mfu,
        together=all(job.began_s <= job.arrival_s + 1e-6 for job in outcome.jobs),
    )


def fits(
    setting: Setting, scheme: Scheme, *, steps: int, models: Models = COMMITTED
) -> Pair | None:
    """``run``, or ``None`` where the scheme has no room."""
    try:
        return run(setting, scheme, steps=steps, models=models)
    except ConfigError:
        return None


def apart(setting: Setting) -> Setting:
    """Half of the devices for rollout, half for training, as disaggregated systems have them."""
    half = setting.cluster.groups[0].n_devices // 2
    jobs = (replace(spec, rollout_devices=half, train_devices=half) for spec in setting.jobs)
    return replace(setting, jobs=tuple(jobs))


def halved(setting: Setting) -> Setting:
    """Each pipeline on half of the devices, so that two fit side by side."""
    jobs = (
        replace(
            spec,
            train_devices=max(1, spec.train_devices // 2),
            rollout_devices=spec.rollout_devices // 2,
        )
        for spec in setting.jobs
    )
    return replace(setting, jobs=tuple(jobs))


def shapes(setting: Setting) -> Iterator[Setting]:
    """The setting as it is, then with twice and four times the tensor parallelism."""
    n_devices = setting.cluster.groups[0].n_devices
    for factor in (1, 2, 4):
        wider = [
            replace(spec, tensor_parallel=factor * spec.tensor_parallel) for spec in setting.jobs
        ]
        if all(n_devices % spec.tensor_parallel == 0 for spec in wider):
            yield replace(setting, jobs=tuple(wider))


def over_verl(setting: Setting, *, steps: int, models: Models = COMMITTED) -> float | None:
    """Our throughput over that of the pipelines one after the other; ``None`` without room."""
    alone = run(setting, schemes.verl(), steps=steps, models=models)
    shared = fits(setting, schemes.ours(models.slowdown), steps=steps, models=models)
    return shared.tokens_per_s / alone.tokens_per_s if shared is not None else None


def _step_s(job: JobOutcome) -> float:
    return (job.step_ends_s[-1] - job.began_s) / len(job.step_ends_s)
