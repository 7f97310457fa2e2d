"""Pools: device time per step of full-weight jobs that share a training pool (PlexRL, Fig. 7).

What ``k`` jobs save is told apart: the *ceiling* is geometry, ``(1 − 1/k) · T / (R + T)``;
*contention* is what steps get longer by waiting for each other, with moves that cost nothing; the
*switch* is what moving states adds to that. ``1 − saving = (1 − ceiling) · contention · switch``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks.sim.sensitivity import Models, changes, names
from benchmarks.sim.told import beside, device_s_per_step, tpts_s
from plait.policies.baselines import packing
from plait.policies.hrrn import HrrnDispatch
from plait.policies.protocol import Dispatch
from plait.policies.registry import make
from plait.sim.costs.protocol import Costs
from plait.sim.costs.roofline import costs_of
from plait.sim.outcome import Outcome, Span
from plait.sim.schemes import Scheme, isolated
from plait.sim.simulate import simulate
from plait.sim.spec import Setting
from plait.sim.workloads import plexrl
from plait.sim.world import CostsOf

PAPER = {"7b": 0.314, "30b": 0.301, "235b": 0.3758}
"""Savings with two jobs on one pool; the last is in the text of the paper that survives, the others
are from summaries of it."""


def shared(dispatch: Dispatch | None = None) -> Scheme:
    """Rollout devices of their own, one pool to train on."""
    return Scheme(
        name="shared-train",
        sharing=make(),
        full="shared-train",
        placement=packing.spread(),
        dispatch=dispatch or HrrnDispatch(),
    )


@dataclass(frozen=True)
class FreeMoves:
    """Costs in which moving states takes no time."""

    real: Costs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def offload_s(self) -> float:
        return 0.0

    def load_s(self) -> float:
        return 0.0


def free_moves(*args: Any, **fields: Any) -> FreeMoves:
    """``costs_of`` with them."""
    return FreeMoves(costs_of(*args, **fields))


def run(setting: Setting, scheme: Scheme, costs: CostsOf, *, spans: bool = False) -> Outcome:
    return simulate(setting, scheme, costs, mode="fluid", spans=spans)


def savings(size: str, ks: Sequence[int], steps: int, **fields: Any) -> dict[str, Any]:
    """Of one size, by jobs on a pool; ``fields`` of the jobs."""
    alone = run(plexrl.shared_pool(size, 1, steps=steps, **fields), isolated(), costs_of)
    job = plexrl.shared_pool(size, 1, **fields).jobs[0]
    rows = {}
    for k in ks:
        setting = plexrl.shared_pool(size, k, steps=steps, **fields)
        whole = run(setting, shared(), costs_of)
        still = run(setting, shared(), free_moves)
        ceiling = plexrl.saving_ceiling(setting)
        per_step, free = device_s_per_step(whole), device_s_per_step(still)
        base = device_s_per_step(alone)
        rows[str(k)] = {
            "saving": 1.0 - per_step / base,
            "ceiling": ceiling,
            "contention": free / base / (1.0 - ceiling),
            "switch": per_step / free,
            "step stretch": tpts_s(whole) / tpts_s(alone),
            "worst stretch": _worst_tpts_s(whole) / tpts_s(alone),
            "device hours per step": per_step / 3600.0,
        }
    return {
        "rollout devices": job.rollout_devices,
        "training devices": job.train_devices,
        "alone: step": tpts_s(alone),
        "alone: device hours per step": device_s_per_step(alone) / 3600.0,
        "by jobs on the pool": rows,
    }


def with_paper(size: str, row: dict[str, Any]) -> dict[str, Any]:
    """Two jobs, and what share of its devices a job must train on for the paper's saving."""
    saving = row["by jobs on the pool"]["2"]["saving"]
    part = row["training devices"] / (row["training devices"] + row["rollout devices"])
    return {
        **beside(PAPER[size], saving),
        "training's part of the devices": part,
        "part that the paper's saving needs at least": 2.0 * PAPER[size],
    }


def fewer_copies(size: str, steps: int) -> dict[str, Any]:
    """Two jobs with one to four copies of the model in each private rollout pool: the assumption on
    which the ceiling hangs."""
    out = {}
    tp = plexrl.shared_pool(size, 1).jobs[0].tensor_parallel
    for copies in (1, 2, 4):
        row = savings(size, (2,), steps, rollout_devices=copies * tp)["by jobs on the pool"]["2"]
        out[str(copies)] = {what: row[what] for what in ("saving", "ceiling", "step stretch")}
    return out


def data_parallel(size: str, steps: int) -> dict[str, Any]:
    """Fig. 7c: decoding on a small pool of its own against on all devices that a job trains on.

    There a copy lies beside the optimizer, for which 235B needs slices twice as wide.
    """
    wider = {"tensor_parallel": 16} if size == "235b" else {}
    small = run(
        plexrl.shared_pool(size, 1, steps=steps, pipeline="sync", staleness=0),
        isolated(),
        costs_of,
        spans=True,
    )
    large_setting = plexrl.colocated(size, steps=steps, pipeline="sync", staleness=0, **wider)
    large = run(large_setting, isolated(), costs_of, spans=True)
    pool = plexrl.shared_pool(size, 1).jobs[0].rollout_devices
    everything = large_setting.jobs[0].train_devices
    rates = {
        "small": _decoded_per_device_s(small, pool),
        "large": _decoded_per_device_s(large, everything),
    }
    return {
        "rollout devices": {"small": pool, "large": everything},
        "tokens per device and second": rates,
        "small over large": rates["small"] / rates["large"],
        "device hours per step": {
            "large, colocated": device_s_per_step(large) / 3600.0,
            "small, alone": device_s_per_step(small) / 3600.0,
        },
    }


def sensitivity(size: str, steps: int, constants: Sequence[str] | None) -> dict[str, Any]:
    """Of what two jobs save."""
    constants = names(slowdown=False) if constants is None else constants
    return changes(partial(_saving, size=size, steps=steps), constants)


def _saving(models: Models, *, size: str, steps: int) -> float:
    alone = run(plexrl.shared_pool(size, 1, steps=steps), isolated(), models.costs_of)
    both = run(plexrl.shared_pool(size, 2, steps=steps), shared(), models.costs_of)
    return 1.0 - device_s_per_step(both) / device_s_per_step(alone)


def _worst_tpts_s(outcome: Outcome) -> float:
    return max(tpts_s(replace(outcome, jobs=(job,))) for job in outcome.jobs)


def _decoded_per_device_s(outcome: Outcome, n_devices: int) -> float:
    """Tokens of all steps over the time from a rollout's first token to its last, all its devices
    counted to the end."""
    (job,) = outcome.jobs
    rolls = [span for span in outcome.spans if span.kind.rolls_out]
    took_s, began_s = 0.0, job.began_s
    for ended_s in job.step_ends_s:
        step = [span for span in rolls if began_s - 1e-9 <= span.t0 < ended_s]
        took_s += _length_s(step)
        began_s = ended_s
    return job.tokens / (took_s * n_devices)


def _length_s(spans: Sequence[Span]) -> float:
    return max(span.t1 for span in spans) - min(span.t0 for span in spans)
