"""Learning: adds the gradients of runs' losses, each to its own run's, all of it or nothing.

One backward pass serves all runs of a micro-batch: their losses are summed, and since no row of one
run meets another's numbers, each adapter gets what it would get alone. A loss that is not finite is
left out of the sum.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import torch

from plait.core.errors import EngineError, PlaitError
from plait.core.operations import ForwardResult
from plait.engines.protocol import TrainStep
from plait.engines.torch.train.batch import Packed
from plait.engines.torch.train.losses import Chosen, Report, metrics
from plait.engines.torch.train.params import RunParams
from plait.engines.torch.train.passes import Plan, Share, passes

Forward = Callable[[Packed, Sequence[RunParams]], torch.Tensor]
"""A micro-batch's log-probs, given the parameters of each of its runs."""


@dataclass(slots=True, kw_only=True, eq=False)
class Lesson(Share):
    """One run's share in a training pass."""

    params: RunParams
    loss: Chosen
    reports: list[Report] = field(default_factory=list)

    def outcome(self) -> ForwardResult | PlaitError:
        """What became of it."""
        if self.error is not None:
            return self.error
        return ForwardResult(logprobs=tuple(self.logprobs), metrics=metrics(self.reports))


def learn(
    lessons: Sequence[Lesson],
    forward: Forward,
    plan: Plan,
    device: torch.device,
    *,
    exact: bool = False,
) -> Generator[TrainStep, None, None]:
    """Add every lesson's gradient; one that fails, or all if this fails or is closed, add none.

    ``exact``: each run by itself, for sums over shared rows would depend on the company.
    """
    before = [lesson.params.grad.clone() for lesson in lessons]
    done = False

    def carry_out(batch: Packed, here: Sequence[Lesson]) -> torch.Tensor:
        return _backward(batch, here, forward)

    try:
        for together in [[lesson] for lesson in lessons] if exact else [lessons]:
            yield from passes(together, carry_out, plan, device, forward_only=False, exact=exact)
        for lesson in lessons:
            if lesson.error is None and not bool(torch.isfinite(lesson.params.grad).all()):
                lesson.error = EngineError("the gradient is not finite: check advantages and clips")
        done = True
    finally:
        for lesson, grad in zip(lessons, before, strict=True):
            if lesson.error is not None or not done:
                lesson.params.grad.copy_(grad)


def _backward(batch: Packed, lessons: Sequence[Lesson], forward: Forward) -> torch.Tensor:
    before = [lesson.params.grad.clone() for lesson in lessons]
    fits = False
    try:
        logprobs_M = forward(batch, [lesson.params for lesson in lessons])
        totals: list[torch.Tensor] = []
        reports: list[tuple[Lesson, Report]] = []
        rows = logprobs_M.split([sum(stretch.counts) for stretch in batch.stretches])
        for lesson, stretch, mine_M in zip(lessons, batch.stretches, rows, strict=True):
            total, report = lesson.loss(mine_M, stretch.inputs_M, stretch.counts)
            if bool(torch.isfinite(total)):
                totals.append(total)
                reports.append((lesson, report))
            else:
                lesson.error = EngineError("the loss is not finite: check advantages and log-probs")
        if totals:
            torch.stack(totals).sum().backward()
        for lesson, report in reports:
            lesson.reports.append(report)
        fits = True
    finally:
        if not fits:
            for lesson, grad in zip(lessons, before, strict=True):
                lesson.params.grad.copy_(grad)
    return logprobs_M.detach()
