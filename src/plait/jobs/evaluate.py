"""Evaluate: held-out reward of the committed version, with a 95 % interval."""

from plait.jobs.collect import Batch, collect, record
from plait.jobs.context import JobContext
from plait.obs.intervals import mean_ci95
from plait.obs.records import Evaluation


async def evaluate(context: JobContext, step: int) -> None:
    """Sample the held-out problems and write the result; samples that erred are left out of the
    mean and counted."""
    section = context.spec.evaluation
    assert section is not None
    batch = Batch(
        split="eval",
        first=0,
        n_groups=section.items,
        n_samples=section.samples,
        tag=("eval",),
        evaluating=True,
    )
    collected = await collect(context, batch)
    for episode in collected.episodes:
        record(context, episode, step, "eval")
    per_item = [
        sum(rewards) / len(rewards)
        for group in collected.groups
        if (rewards := [e.reward for e in group if e.reward is not None])
    ]
    interval = mean_ci95(per_item)
    context.recorder.evaluation(
        Evaluation(
            step=step,
            eval_reward_mean=interval.mean if interval else None,
            eval_n=len(per_item),
            eval_ci95_low=interval.low if interval else None,
            eval_ci95_high=interval.high if interval else None,
            eval_errors=sum(e.reward is None for e in collected.episodes),
            eval_s=collected.rollout_s + collected.reward_s,
        ),
        now=context.now(),
    )
