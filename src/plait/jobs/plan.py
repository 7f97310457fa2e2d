"""Plan: what jobs will need before they run: cache, memory, time, and whether sharing will pay.

An estimate from measured rates and stated assumptions, not a simulation. Sharing is bounded by the
machine's total work at the larger batch and by the longest job; it pays when that bound is well
below the sum of the jobs alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from plait.core.errors import PlaitError
from plait.core.runs import HEAD
from plait.engines.protocol import ModelShape
from plait.envs.declared import read_declared
from plait.envs.protocol import TaskSource
from plait.jobs.memory import Memory, estimate
from plait.jobs.preflight import prompt_tokens
from plait.jobs.room import Room, room_of
from plait.jobs.spec import JobSpec
from plait.models.rates import Rates
from plait.runtime.settings import Settings

LENGTH_SHARE = 0.6
"""Share of its token limit that a turn uses on average, where nothing is known of the policy and it
may end before (``sampling.ignore_eos``: all of it)."""
TURN_SHARE = 0.5
"""Share of the further turns that a sample takes: most end in one or two."""
PROBED = 4
"""Problems whose prompts are looked at."""
ATTAINED = 0.85
"""Share of the bound that an interleaved launch reaches."""
PAYS = 1.15
"""Below this gain the longer steps of each job are not worth it."""
WIDTH = 2.5
"""Inputs plus outputs of a linear layer over the hidden size, the mean of a Llama block's seven."""
UNKNOWN_STEPS = 100
"""Steps assumed for a job that ends at a target reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What one job needs, alone."""

    name: str
    kv_blocks: int
    adapter_bytes: int
    steps: int
    prompt_tokens: int
    work_s: float
    """Machine time of one step at its own batch size."""
    step_s: float
    """Wall time of one step alone, tools included."""
    tokens: float
    trained_tokens: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What all jobs need together."""

    jobs: tuple[JobPlan, ...]
    kv_budget_blocks: int
    block_bytes: int
    memory: Memory
    sequential_s: float
    shared_s: float
    by_transformers: bool = False

    @property
    def speedup(self) -> float:
        return self.sequential_s / self.shared_s

    @property
    def pays(self) -> bool:
        return self.speedup >= PAYS

    @property
    def too_large(self) -> tuple[str, ...]:
        """Jobs of which a single step may need more than the whole cache."""
        return tuple(job.name for job in self.jobs if job.kv_blocks > self.kv_budget_blocks)


async def make_plan(
    specs: Sequence[JobSpec],
    sources: Sequence[TaskSource],
    *,
    shape: ModelShape,
    rates: Rates,
    settings: Settings,
) -> Plan:
    """Estimate; an error that names its job if a single sample can never fit."""
    room = room_of(shape, settings)
    jobs = [
        await _job(spec, source, shape, rates, settings, room)
        for spec, source in zip(specs, sources, strict=True)
    ]
    sequential = sum(j.step_s * j.steps for j in jobs)
    batch = sum(j.samples for j in jobs)
    work = sum(
        j.steps * (j.tokens / rates.decode_at(batch) + j.trained_tokens / rates.train) for j in jobs
    )
    longest = max(j.step_s * j.steps for j in jobs)
    shared = max(work, longest) / ATTAINED if len(jobs) > 1 else sequential
    return Plan(
        jobs=tuple(jobs),
        kv_budget_blocks=settings.kv_blocks,
        block_bytes=settings.block_bytes(shape),
        memory=estimate(shape, settings, adapters=sum(j.adapter_bytes for j in jobs)),
        sequential_s=sequential,
        shared_s=min(shared, sequential),
        by_transformers=shape.by_transformers,
    )


async def _job(
    spec: JobSpec,
    source: TaskSource,
    shape: ModelShape,
    rates: Rates,
    settings: Settings,
    room: Room,
) -> JobPlan:
    try:
        declared = read_declared(source)
        room.check_limits(spec.limits)
        prompts = [await prompt_tokens(spec, source, i, "train", room) for i in range(PROBED)]
    except PlaitError as error:
        raise type(error)(f"job {spec.name}: {error}") from error
    turns = spec.turns(declared.max_turns)
    samples = spec.groups * spec.samples
    mean_turns = 1 + TURN_SHARE * (turns - 1)
    share = 1.0 if spec.sampling.ignore_eos else LENGTH_SHARE
    tokens = samples * mean_turns * share * spec.limits.max_tokens
    read = samples * (mean_turns - 1) * max(prompts) + spec.groups * max(prompts)
    trained = tokens + samples * max(prompts)
    latency = latency_s(spec)
    work = tokens / rates.decode_at(samples) + read / rates.prefill + trained / rates.train
    return JobPlan(
        name=spec.name,
        kv_blocks=room.worst_blocks(
            spec,
            declared,
            n_prompts=spec.groups,
            group_size=spec.samples,
            prompt_tokens=max(prompts),
            block_size=settings.block_size,
        ),
        adapter_bytes=_adapter_bytes(spec, shape),
        steps=spec.steps or UNKNOWN_STEPS,
        prompt_tokens=max(prompts),
        work_s=work,
        step_s=work + mean_turns * latency,
        tokens=tokens,
        trained_tokens=trained,
        samples=samples,
    )


def latency_s(spec: JobSpec) -> float:
    """What the built-in environments wait in each turn; a user's may mean anything by the word."""
    value = spec.environment.config.get("latency_s", 0.0)
    return float(value) if isinstance(value, int | float) and 0 <= value < inf else 0.0


def _adapter_bytes(spec: JobSpec, shape: ModelShape) -> int:
    """Adapter, gradient and two moments in fp32."""
    in_blocks = [target for target in spec.adapter.targets if target != HEAD]
    per_rank = WIDTH * shape.hidden_size * len(in_blocks) * shape.n_layers
    if HEAD in spec.adapter.targets:
        per_rank += shape.hidden_size + shape.vocab_size
    return int(spec.adapter.rank * per_rank * 4 * 4)
