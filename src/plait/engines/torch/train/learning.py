"""Learning: adds the gradients of runs' losses, each to its own run's, all of it or nothing.

One backward pass serves all runs of a micro-batch: their losses are summed, and since no row of one
run meets another's numbers, each adapter gets what it would get alone. A loss that is not finite is
left out of the sum. What a step could make nothing of is not added either: nothing that is added
later would mend it, so no step of that run would ever succeed.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch

from plait.core.errors import NotFinite, PlaitError
from plait.core.operations import ForwardResult
from plait.engines.protocol import TrainStep
from plait.engines.torch.lanes import Lanes, OnLayer
from plait.engines.torch.train.adamw import has_norm
from plait.engines.torch.train.batch import Packed
from plait.engines.torch.train.losses import Chosen, Report, metrics
from plait.engines.torch.train.own import OwnLoss
from plait.engines.torch.train.params import RunParams
from plait.engines.torch.train.passes import Plan, Share, passes


class Forward(Protocol):
    """A micro-batch's log-probs, given the parameters of each of its runs."""

    def __call__(
        self, batch: Packed, params: Sequence[RunParams], on_layer: OnLayer
    ) -> torch.Tensor: ...


@dataclass(slots=True, kw_only=True, eq=False)
class Lesson(Share):
    """One run's share in a training pass."""

    params: RunParams
    loss: Chosen | OwnLoss
    reports: list[Report] = field(default_factory=list)

    def outcome(self) -> ForwardResult | PlaitError:
        """What became of it."""
        if self.error is not None:
            return self.error
        return ForwardResult(logprobs=tuple(self.logprobs), metrics=metrics(self.reports))


@dataclass(frozen=True, slots=True)
class Found:
    """What a micro-batch gives: log-probs ``(M,)``, and of each run its report and its gradient, or
    what is wrong with its loss."""

    logprobs_M: torch.Tensor
    by_run: list[tuple[Report, torch.Tensor] | PlaitError]


def learn(
    lessons: Sequence[Lesson],
    forward: Forward,
    plan: Plan,
    lanes: Lanes,
    device: torch.device,
    *,
    exact: bool = False,
) -> Generator[TrainStep, None, None]:
    """Add every lesson's gradient; one that fails, or all if this fails or is closed, add none.

    ``exact``: each run by itself, for sums over shared rows would depend on the company.
    """
    before = [lesson.params.grad.clone() for lesson in lessons]
    done = False

    def compute(batch: Packed, here: Sequence[Lesson], on_layer: OnLayer) -> Found:
        return _backward(batch, here, partial(forward, on_layer=on_layer))

    try:
        for together in [[lesson] for lesson in lessons] if exact else [lessons]:
            yield from passes(
                together, compute, _keep, plan, lanes, device, forward_only=False, exact=exact
            )
        for lesson in lessons:
            if lesson.error is None and not has_norm(lesson.params.grad):
                lesson.error = NotFinite("the gradient is not finite: check advantages and clips")
        done = True
    finally:
        for lesson, grad in zip(lessons, before, strict=True):
            if lesson.error is not None or not done:
                lesson.params.grad.copy_(grad)


def _backward(
    batch: Packed,
    lessons: Sequence[Lesson],
    forward: Callable[[Packed, Sequence[RunParams]], torch.Tensor],
) -> Found:
    """Gradients in buffers of their own: in the order in which lanes happen to come by, sums would
    be others each time, and one that runs out of memory leaves nothing behind."""
    params = [lesson.params.beside() for lesson in lessons]
    logprobs_M = forward(batch, params)
    totals: list[torch.Tensor] = []
    found: list[tuple[Report, torch.Tensor] | PlaitError] = []
    rows = logprobs_M.split([sum(stretch.counts) for stretch in batch.stretches])
    for lesson, mine, stretch, mine_M in zip(lessons, params, batch.stretches, rows, strict=True):
        try:
            total, report = lesson.loss.on(mine_M, stretch)
        except PlaitError as error:  # of a client's own loss
            found.append(error)
            continue
        if bool(torch.isfinite(total)):
            totals.append(total)
            found.append((report, mine.grad))
        else:
            found.append(NotFinite("the loss is not finite: check advantages and log-probs"))
    if totals and (total := torch.stack(totals).sum()).requires_grad:
        total.backward()
    return Found(logprobs_M.detach(), found)


def _keep(found: Found, lessons: Sequence[Lesson]) -> torch.Tensor:
    for lesson, mine in zip(lessons, found.by_run, strict=True):
        if isinstance(mine, PlaitError):
            lesson.error = mine
        elif lesson.error is None:
            report, grad = mine
            lesson.reports.append(report)
            lesson.params.grad.add_(grad)
    return found.logprobs_M
