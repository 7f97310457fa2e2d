"""C7: speed of deciding, and of the simulator, with growth curves.

Timed is ``decide``, on views of states that a policy meets in service: it is asked again and
again while runs come, are served and go, with the state that it gave back. Dispatch is timed in the
runtime as well, by its own queue (``live_queue``): there the view is brought up to date, and those
who wait are told. Times are those of one
core (what others do on the machine meanwhile is not in them); the first decision and the garbage
collector are. A bar is given as bar ÷ measured (rates: measured ÷ bar), and the figure is the least
of them.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

from benchmarks.figure import Measured
from benchmarks.sim.live_queue import live_times
from benchmarks.sim.told import rounded
from benchmarks.sim.views import GB, Trainer, look_ahead_view, placements
from plait.core.plan import reasons
from plait.policies.colocation import LookAhead
from plait.policies.dispatch import FairDispatch
from plait.policies.hrrn import HrrnDispatch
from plait.policies.node_groups import CyclicPlacement
from plait.policies.protocol import Dispatch, State
from plait.policies.registry import make
from plait.runtime.settings import Settings
from plait.sim.costs.roofline import costs_of
from plait.sim.heap import churn
from plait.sim.schemes import Scheme
from plait.sim.simulate import simulate
from plait.sim.spec import Cluster, Setting
from plait.sim.workloads.cluster import DAY_S, trace

DISPATCH_S, PLACEMENT_S, LOOK_AHEAD_S = 1e-3, 10e-3, 5e-3
DISPATCH_RUNS, PLACEMENT_JOBS = 2000, 2000
"""At which they are to be kept."""
EVENTS_PER_S = 300_000
WEEK_S = 20 * 60.0
WEEK_DAYS, WEEK_JOBS, WEEK_GROUPS, WEEK_GROUP_DEVICES = 7.0, 5000, 156, 64
DRAWS = 4
"""Different rollouts of each job of the week; the makespan of a shared pool is within 3 % of that
with all different."""
WAITING = 20
"""One run in so many waits for its update: training takes a tenth to a hundredth of a step
(MARLaaS §3), and a twentieth is at the upper end of that."""
AS_THE_RUNTIME = ("live, one in twenty waits", "live, all wait")
"""The runtime's own queue: what it does besides is in its times, which are judged alike."""
SERVED = Settings().max_seqs
"""Runs that a rollout worker serves at a time, if each has one sample there: their served work is
new at each decision."""
ROOMY, SHORT = 2000 * GB, 300 * GB
"""Host memory of a node group: for six jobs, and for one."""
DISPATCHES: Mapping[str, Dispatch] = {"fair": FairDispatch(), "hrrn": HrrnDispatch()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is timed."""

    runs: Sequence[int] = (125, 250, 500, 1000, 2000, 4000, 8000)
    jobs: Sequence[int] = (250, 500, 1000, 2000, 4000)
    colocated: Sequence[int] = (1, 2, 4, 8, 16)
    workers: Sequence[int] = (1, 4)
    decisions: int = 10_000
    """Of dispatch at the size of its bar; a twentieth of it elsewhere and of placement, and a
    fiftieth of look-ahead."""
    events: int = 1_000_000
    week: Sequence[float] = (0.05, 0.2, 1.0)
    """Parts of a week with 5,000 jobs on 10,000 devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """What was timed, but for the weeks."""

    dispatch: Mapping[str, Any]
    placement: Mapping[str, Mapping[int, Mapping[str, float]]]
    ahead: Mapping[int, Mapping[int, Mapping[str, float]]]
    events_per_s: float


SMALL = Size(
    runs=(50,), jobs=(40,), colocated=(2,), workers=(1,), decisions=50, events=10_000, week=(0.002,)
)


def measure() -> Measured:
    """At full size."""
    return measured(Size())


def measured(size: Size) -> Measured:
    """All growth curves, and how far each is from its bar; then the weeks, one after the other, in
    a process that has done nothing else."""
    curves = curves_of(size)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
        return told(
            size, curves, dict(zip(size.week, apart.map(virtual_week, size.week), strict=True))
        )


def curves_of(size: Size) -> Curves:
    """Of the policies, and of the event heap."""
    dispatch = {name: dispatch_curves(policy, size) for name, policy in DISPATCHES.items()}
    placement = {
        "all have room": placement_curve(size, ROOMY),
        "three in eight wait": placement_curve(size, SHORT),
    }
    ahead = {
        w: {n: look_ahead_times(n, w, max(5, size.decisions // 50)) for n in size.colocated}
        for w in size.workers
    }
    seconds, n_events = timed(lambda: churn(size.events))
    return Curves(
        dispatch=dispatch, placement=placement, ahead=ahead, events_per_s=n_events / seconds
    )


def told(size: Size, curves: Curves, weeks: Mapping[float, Mapping[str, float]]) -> Measured:
    """With the margins to the bars."""
    runs, jobs = _bar(size.runs, DISPATCH_RUNS), _bar(size.jobs, PLACEMENT_JOBS)
    colocated = _bar(size.colocated, 8)
    margins = {
        **{
            f"dispatch {name}, {case}, p99": DISPATCH_S / by_case[case][runs]["p99"]
            for name, by_case in curves.dispatch.items()
            for case in ("one in twenty waits", "all wait")
        },
        **{
            f"dispatch {name}, {case}, p99": DISPATCH_S / by_case[case]["p99"]
            for name, by_case in curves.dispatch.items()
            for case in AS_THE_RUNTIME
        },
        **{
            f"placement, {case}, p99": PLACEMENT_S / curve[jobs]["p99"]
            for case, curve in curves.placement.items()
        },
        **{
            f"look-ahead, {w} workers, p99": LOOK_AHEAD_S / times[colocated]["p99"]
            for w, times in curves.ahead.items()
        },
        "events": curves.events_per_s / EVENTS_PER_S,
        "virtual week": WEEK_S / max(week["seconds"] for week in weeks.values()),
    }
    return Measured(
        value=min(margins.values()),
        ok=min(margins.values()) >= 1.0,
        detail=rounded(
            {
                "margins": margins,
                "dispatch by runs": curves.dispatch,
                "placement by jobs (five devices each)": curves.placement,
                "look-ahead by workers and runs": curves.ahead,
                "events per second": curves.events_per_s,
                "virtual week by part": weeks,
            }
        ),
    )


def _bar(sizes: Sequence[int], at: int) -> int:
    """The size at which a bar is to be kept, or the largest that is measured."""
    return at if at in sizes else max(sizes)


def dispatch_curves(policy: Dispatch, size: Size) -> dict[str, Any]:
    """By the number of runs; and at the size of the bar what a caller pays besides."""
    at = _bar(size.runs, DISPATCH_RUNS)
    few = max(5, size.decisions // 20)
    n = {runs: size.decisions if runs == at else few for runs in size.runs}
    return {
        "one in twenty waits": {
            runs: dispatch_times(policy, runs, runs // WAITING, n[runs]) for runs in size.runs
        },
        "all wait": {runs: dispatch_times(policy, runs, runs, n[runs]) for runs in size.runs},
        "live, one in twenty waits": live(policy, at, at // WAITING, size.decisions),
        "live, all wait": live(policy, at, at, size.decisions),
        "live, all that roll out are served": live(policy, at, at // WAITING, few, n_served=at),
        "live, decisions written": live(policy, at, at // WAITING, max(5, few // 5), written=True),
        "views made anew": dispatch_times(policy, at, at // WAITING, few, anew=True),
        "all wait, reasons read": dispatch_times(policy, at, at, few, read=reasons),
        "all wait, waits worded": dispatch_times(policy, at, at, max(5, few // 5), read=tuple),
    }


def dispatch_times(
    policy: Dispatch,
    n_runs: int,
    n_waiting: int,
    n_decisions: int,
    *,
    anew: bool = False,
    read: Callable[[Any], Any] | None = None,
) -> dict[str, float]:
    """Of one decision after the other at a trainer; with what it takes to ``read`` all waits."""
    trainer = Trainer(n_runs, n_waiting, random.Random(n_runs))
    state: State = {}
    took, waited = [], 0
    for _ in range(n_decisions):
        view = trainer.view(anew=anew)
        waited += len(view.items)
        start = time.thread_time()
        plan, state = policy.decide(view, state, trainer.now)
        if read is not None:
            for _ in read(plan.waits):
                pass
        took.append(time.thread_time() - start)
        trainer.serve(plan)
    return {"decisions": n_decisions, "waiting": waited / n_decisions, **quantiles(took)}


def live(
    policy: Dispatch,
    n_runs: int,
    n_waiting: int,
    n_decisions: int,
    *,
    n_served: int = SERVED,
    written: bool = False,
) -> dict[str, float]:
    """Of the runtime's own training queue, from a worker's answer to its next command."""
    took, waiting = live_times(
        policy,
        n_runs=n_runs,
        n_waiting=n_waiting,
        n_served=n_served,
        n_decisions=n_decisions,
        written=written,
    )
    return {"decisions": n_decisions, "waiting": waiting, **quantiles(took)}


def placement_curve(size: Size, host_bytes: int) -> dict[int, dict[str, float]]:
    """By the number of jobs, on five devices each."""
    n = max(5, size.decisions // 20)
    return {jobs: placement_times(jobs, 5 * jobs, n, host_bytes) for jobs in size.jobs}


def placement_times(
    n_jobs: int, n_devices: int, n_decisions: int, host_bytes: int
) -> dict[str, float]:
    """Of the cyclic policy once all jobs have come; one ends and another comes each time."""
    policy, state, took = CyclicPlacement(), {}, []
    rng = random.Random(n_jobs)
    for view, now, placed in placements(n_jobs, n_devices, n_decisions, rng, host_bytes):
        seconds, (plan, state) = timed(lambda: policy.decide(view, state, now))  # noqa: B023
        took.append(seconds)
        placed(plan)
    arrival, *rest = took
    waiting = len(view.waiting)
    return {"decisions": n_decisions, "waiting": waiting, "all come at once": arrival} | quantiles(
        rest
    )


def look_ahead_times(n_runs: int, n_workers: int, n_decisions: int) -> dict[str, float]:
    """Of the first decision, where each run has a step before it; another step each time."""
    policy, took = LookAhead(), []
    for seed in range(n_decisions):
        view = look_ahead_view(n_runs, n_workers, random.Random(seed))
        took.append(timed(lambda: policy.decide(view, {}, 0.0))[0])  # noqa: B023
    return {"decisions": n_decisions, **quantiles(took)}


def week(part: float) -> Setting:
    """A week of such a part of 5,000 jobs and 10,000 devices: half of the node groups to train on,
    half for the jobs' own rollout. Each job has ``DRAWS`` different rollouts, and tools are called
    for all samples of a worker at once: each call by itself would be an event."""
    n_groups = max(2, round(WEEK_GROUPS * part))
    setting = trace(
        days=WEEK_DAYS,
        jobs_per_day=WEEK_JOBS * part / WEEK_DAYS,
        n_groups=n_groups,
        group_devices=WEEK_GROUP_DEVICES,
        seed=1,
    )
    groups = tuple(
        replace(group, name=f"rollout-{i}") if i % 2 else group
        for i, group in enumerate(setting.cluster.groups)
    )
    jobs = tuple(
        replace(spec, tool=replace(spec.tool, blocked=True)) if spec.tool is not None else spec
        for spec in setting.jobs
    )
    options = {"until_s": WEEK_DAYS * DAY_S, "draws": DRAWS}
    return replace(setting, cluster=Cluster(groups=groups), jobs=jobs, options=options)


def virtual_week(part: float) -> dict[str, float]:
    """Its seconds of a core, with placement and dispatch as they are in service."""
    setting = week(part)
    scheme = Scheme(name="cyclic", sharing=make(), placement=CyclicPlacement(), full="shared-train")
    clock = time.perf_counter()
    seconds, outcome = timed(lambda: simulate(setting, scheme, costs_of, mode="fluid", spans=False))
    return {
        "seconds": seconds,
        "by the clock": time.perf_counter() - clock,
        "jobs": len(setting.jobs),
        "devices": outcome.n_devices,
        "steps": sum(len(job.step_ends_s) for job in outcome.jobs),
        "events": outcome.n_events,
        "decisions": outcome.n_decisions,
    }


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of a core that a call took, and what it gave."""
    start = time.thread_time()
    answer = call()
    return time.thread_time() - start, answer


def quantiles(took: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and most, seconds."""
    ordered = sorted(took)
    last = len(ordered) - 1
    return {
        "median": ordered[last // 2],
        "p99": ordered[min(last, round(0.99 * last))],
        "most": ordered[-1],
    }
