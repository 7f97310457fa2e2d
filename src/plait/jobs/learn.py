"""Learn: one update from one collected batch: reference pass, gradient, optimizer step, publish."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from plait.algos.batch import Scored, build_batch
from plait.algos.datums import with_reference
from plait.core.operations import ForwardResult, StepResult
from plait.jobs.collect import Collected
from plait.jobs.context import JobContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What an update did. Without signal there is none, and the version stays."""

    version: int
    """The run's version after the step."""
    groups: int
    groups_skipped: int
    staleness: int = 0
    tokens_trained: int = 0
    lr: float = 0.0
    reference_s: float = 0.0
    train_s: float = 0.0
    publish_s: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)


async def learn(
    context: JobContext,
    collected: Collected,
    step: int,
    *,
    progress: Callable[[Learned], dict[str, object]],
) -> Learned:
    """Train on a batch; ``progress`` of what was learned is committed with the step."""
    spec, client = context.spec, context.client
    kl_coef = spec.algorithm.kl_coef
    batch = build_batch(
        [
            [Scored(trajectory=e.trajectory, reward=e.reward) for e in group]
            for group in collected.groups
        ],
        algorithm=spec.algorithm.name,
        max_tokens=spec.turns(context.declared.max_turns) * spec.limits.max_tokens,
        kl_coef=kl_coef,
    )
    n_groups = len(collected.groups)
    if not batch.data:
        nothing = Learned(version=client.version, groups=n_groups, groups_skipped=n_groups)
        await client.skip_step(progress(nothing))
        return nothing
    t0 = context.now()
    data = batch.data
    if kl_coef > 0:
        reference = await client.forward(data, adapter=False)
        data = with_reference(data, reference.logprobs)
    t1 = context.now()
    versions = [e.version for e in collected.episodes if e.version is not None]
    adam = spec.adam(step)
    staleness = client.version - min(versions, default=client.version)
    loss = spec.algorithm.loss, spec.algorithm.loss_config
    gradient = asyncio.create_task(client.forward_backward(data, *loss))

    def learned(gradient: ForwardResult, stepped: StepResult) -> Learned:
        return Learned(
            version=stepped.version,
            groups=n_groups,
            groups_skipped=n_groups - len(batch.signal.with_signal),
            staleness=staleness,
            tokens_trained=batch.n_tokens,
            lr=adam.learning_rate,
            reference_s=t1 - t0,
            train_s=context.now() - t1,
            metrics={**gradient.metrics, **stepped.metrics},
        )

    async def kept(stepped: StepResult) -> dict[str, object]:
        return progress(learned(await gradient, stepped))

    # Asked for at once, so that no other run's gradient comes between the two.
    stepping = asyncio.create_task(client.optim_step(adam, progress=kept))
    done = await asyncio.gather(gradient, stepping, return_exceptions=True)
    if failed := next((d for d in done if isinstance(d, BaseException)), None):
        raise failed
    stepped = stepping.result()
    result, t2 = learned(gradient.result(), stepped), context.now()
    await client.publish(stepped.version)
    return replace(result, publish_s=context.now() - t2)
