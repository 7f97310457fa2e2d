"""Estimates: how long a job's step takes alone, from the cost model, before anything has run.

The first step's draw goes through a decode batch by itself on each slice; tool waits and reward are
added. Real steps differ as lengths do. Left to others: who is misled by it.
"""

from dataclasses import dataclass

from plait.core.placement import Demand
from plait.sim.batch import Batch
from plait.sim.costs.protocol import Costs
from plait.sim.lengths import StepDraw, draw_step
from plait.sim.row import Row
from plait.sim.spec import JobSpec

N_BINS = 32
"""Of a demand trace: a training phase of a thirtieth of the step is still seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """One step alone, seconds."""

    rollout_s: float
    """Tools included."""
    reward_s: float
    update_s: float
    """Reference, training and weight sync."""

    @property
    def step_s(self) -> float:
        return self.rollout_s + self.reward_s + self.update_s


class _Whole:
    """All rows of a trial batch."""

    run = "trial"

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows


def step_times(
    spec: JobSpec, *, roll: Costs, n_roll: int, train: Costs, n_train: int, seed: int = 0
) -> StepTimes:
    """Of the job on so many rollout and training slices, by itself."""
    draw = draw_step(spec, 0, seed)
    rollout_s = sum(
        _turn_s(spec, draw, turn, roll, n_roll) for turn in range(max(1, len(spec.turns)))
    )
    tokens = -(-draw.total_tokens(spec.samples) // n_train)
    samples = -(-draw.n_samples // n_train)
    update_s = train.train_s(tokens, samples) + train.sync_s()
    if spec.reference:
        update_s += train.reference_s(tokens, samples)
    return StepTimes(rollout_s=rollout_s, reward_s=spec.reward_s, update_s=update_s)


def demand(times: StepTimes, *, part: float, on_rollout: float = 0.0) -> Demand:
    """Use of a node group: ``part`` of it while updating, ``on_rollout`` while rolling out."""
    width_s = period_s(times) / N_BINS
    update_from_s = times.rollout_s + times.reward_s
    bins = []
    for i in range(N_BINS):
        a, b = i * width_s, (i + 1) * width_s
        rolling_s = max(0.0, min(b, times.rollout_s) - a)
        updating_s = max(0.0, b - max(a, update_from_s))
        used = (part * updating_s + on_rollout * rolling_s) / width_s
        bins.append(min(1.0, used))
    return Demand(period_s=period_s(times), bins=tuple(bins))


def period_s(times: StepTimes) -> float:
    """Of a demand: positive, whatever the step."""
    return max(times.step_s, 1e-9)


def _turn_s(spec: JobSpec, draw: StepDraw, turn: int, costs: Costs, n_slices: int) -> float:
    """A turn of all samples that have it, as if all began it together, and the tool before."""
    rows = []
    whole = _Whole(0)
    for sample in range(0, draw.n_samples, n_slices):
        if turn >= len(draw.responses[sample]):
            continue
        prompt = draw.prompts[sample // spec.samples]
        context = prompt + sum(draw.responses[sample][:turn]) + sum(draw.results[sample][:turn])
        row = Row(whole, sample, context, 0, draw.responses[sample][turn])
        if turn:
            row.compute = draw.results[sample][turn - 1]
        elif sample % spec.samples < n_slices:
            row.compute = prompt
        rows.append(row)
    if not rows:
        return 0.0
    whole.n_rows = len(rows)
    batch = Batch(costs, exact=False)
    batch.join(rows)
    batch.plan(float("inf"), every=False)
    wait_s = spec.tool.latency_s if spec.tool is not None and turn else 0.0
    return batch.left_s + wait_s
