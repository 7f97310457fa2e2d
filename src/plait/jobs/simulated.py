"""Simulated: jobs of a job file as jobs of a simulation, by the assumptions of ``plan``.

Prompts are measured on the first problems. A turn uses ``LENGTH_SHARE`` of its limit on average,
evenly between so little and all that this is the mean; samples take 1 to all turns, equally often.
"""

from collections.abc import Sequence

from plait.core.errors import PlaitError
from plait.envs.declared import read_declared
from plait.envs.protocol import TaskSource
from plait.jobs.plan import LENGTH_SHARE, PROBED, UNKNOWN_STEPS, latency_s
from plait.jobs.preflight import prompt_tokens
from plait.jobs.room import Room
from plait.jobs.spec import JobSpec
from plait.sim import spec as sim


async def sim_jobs(
    specs: Sequence[JobSpec], sources: Sequence[TaskSource], *, model: str, max_context: int
) -> tuple[sim.JobSpec, ...]:
    """The jobs; ``model`` is how the cost model calls theirs. An error names its job."""
    room = Room(max_context=max_context, cache_tokens=max_context)
    return tuple(
        [await _job(spec, source, model, room) for spec, source in zip(specs, sources, strict=True)]
    )


async def _job(spec: JobSpec, source: TaskSource, model: str, room: Room) -> sim.JobSpec:
    try:
        declared = read_declared(source)
        prompts = [await prompt_tokens(spec, source, i, "train", room) for i in range(PROBED)]
    except PlaitError as error:
        raise type(error)(f"job {spec.name}: {error}") from error
    turns = spec.turns(declared.max_turns)
    most = spec.limits.max_tokens
    least = most if spec.sampling.ignore_eos else max(1, round((2 * LENGTH_SHARE - 1) * most))
    return sim.JobSpec(
        name=spec.name,
        model=model,
        pipeline="async" if spec.staleness else "sync",
        staleness=spec.staleness,
        groups=spec.groups,
        samples=spec.samples,
        prompt=sim.Lengths(
            kind="empirical", least=1, most=max(prompts), values=tuple(sorted(prompts))
        ),
        response=sim.Lengths(kind="uniform", least=least, most=most),
        turns=(1.0,) * turns,
        tool=sim.Tool(latency_s=latency_s(spec)) if turns > 1 else None,
        reward_s=latency_s(spec),
        reference=spec.algorithm.kl_coef > 0,
        steps=spec.steps or UNKNOWN_STEPS,
        weight=spec.weight,
        priority=spec.priority,
        seed=spec.seed,
    )
