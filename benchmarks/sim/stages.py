"""Stages: how one pipeline's step divides into rollout, reference, training and tool (Table 1)."""

from collections.abc import Mapping, Sequence

from plait.core.substages import Kind
from plait.sim.outcome import Outcome, Span

STAGES = ("rollout", "reference", "training", "tool")


def seconds(outcome: Outcome) -> dict[str, float]:
    """Of all steps of a synchronous job that ran alone, by stage.

    Tool: when the worker that ends a rollout last has nothing to decode before it ends, as only
    that lengthens the step. Training: the rest, with weight sync, offload and reward.
    """
    (job,) = outcome.jobs
    took = dict.fromkeys(STAGES, 0.0)
    began_s = job.began_s
    for ended_s in job.step_ends_s:
        step = [span for span in outcome.spans if began_s - 1e-9 <= span.t0 < ended_s]
        rolled_s, tool_s = _rollout(step, began_s)
        reference_s = _longest_s(step, Kind.REFERENCE)
        took["rollout"] += rolled_s - tool_s
        took["tool"] += tool_s
        took["reference"] += reference_s
        took["training"] += ended_s - began_s - rolled_s - reference_s
        began_s = ended_s
    return took


def percent(took: Mapping[str, float], *, passes: int = 1) -> dict[str, float]:
    """Shares of the step, with the reference stage ``passes`` times: stages of a run that is alone
    come one after the other, so a second pass adds its time and changes nothing else."""
    scaled = {stage: s * (passes if stage == "reference" else 1) for stage, s in took.items()}
    whole = sum(scaled.values())
    return {stage: 100.0 * s / whole for stage, s in scaled.items()}


def _rollout(step: Sequence[Span], began_s: float) -> tuple[float, float]:
    """Seconds of the rollout, and of these without anything to decode on the last worker."""
    rolls = [span for span in step if span.kind.rolls_out]
    last = max(rolls, key=lambda span: span.t1)
    decoded_s = sum(span.t1 - span.t0 for span in rolls if span.device == last.device)
    return last.t1 - began_s, last.t1 - began_s - decoded_s


def _longest_s(step: Sequence[Span], kind: Kind) -> float:
    """Of the slowest device: all wait for it."""
    by_device: dict[str, float] = {}
    for span in step:
        if span.kind is kind:
            by_device[span.device] = by_device.get(span.device, 0.0) + span.t1 - span.t0
    return max(by_device.values(), default=0.0)
