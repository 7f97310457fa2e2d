"""Learn: one update from one collected batch: reference pass, gradient, optimizer step, publish."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from plait.algos.batch import Scored, build_batch
from plait.algos.datums import with_reference
from plait.jobs.collect import Collected
from plait.jobs.context import JobContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What an update did. Without signal there is none, and the version stays."""

    signal: bool
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
    progress: Callable[[bool], dict[str, object]],
) -> Learned:
    """Train on a batch; ``progress(signal)`` is committed with the step."""
    spec, client = context.spec, context.client
    kl_coef = spec.algorithm.kl_coef
    batch = build_batch(
        [
            [Scored(trajectory=e.trajectory, reward=e.reward) for e in group]
            for group in collected.groups
        ],
        algorithm=spec.algorithm.name,
        max_tokens=spec.turns(context.source.max_turns) * spec.limits.max_tokens,
        kl_coef=kl_coef,
    )
    n_groups = len(collected.groups)
    if not batch.data:
        await client.skip_step(progress(False))
        return Learned(signal=False, groups=n_groups, groups_skipped=n_groups)
    t0 = context.now()
    data = batch.data
    if kl_coef > 0:
        reference = await client.forward(data, adapter=False)
        data = with_reference(data, reference.logprobs)
    t1 = context.now()
    versions = [e.version for e in collected.episodes if e.version is not None]
    gradient = await client.forward_backward(data, spec.algorithm.loss, spec.algorithm.loss_config)
    adam = spec.adam(step)
    staleness = client.version - min(versions, default=client.version)
    stepped = await client.optim_step(adam, progress=progress(True))
    t2 = context.now()
    await client.publish(stepped.version)
    t3 = context.now()
    return Learned(
        signal=True,
        groups=n_groups,
        groups_skipped=n_groups - len(batch.signal.with_signal),
        staleness=staleness,
        tokens_trained=batch.n_tokens,
        lr=adam.learning_rate,
        reference_s=t1 - t0,
        train_s=t2 - t1,
        publish_s=t3 - t2,
        metrics={**gradient.metrics, **stepped.metrics},
    )
