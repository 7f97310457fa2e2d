"""Schemes: published ways of running several jobs, as compositions of our policies.

A value names the topology, the pipeline that every job is made to use, and the policies that fill
the places; the simulator interprets it. They are *our* versions, on equal engines, costs and
devices, hence "-like": what is compared is how work is arranged, not whose kernels are faster.

Left to others: policies that decide something of their own (``baselines``, ``node_groups``,
``hrrn``, co-location), what a topology means in devices (``sim``).
"""

from dataclasses import dataclass
from typing import Literal

from plait.core.errors import ConfigError
from plait.policies.baselines import packing
from plait.policies.baselines.round_robin import RoundRobin
from plait.policies.baselines.sjf import ShortestFirst
from plait.policies.dispatch import FairDispatch, FifoDispatch
from plait.policies.hrrn import HrrnDispatch
from plait.policies.node_groups import CyclicPlacement
from plait.policies.protocol import Dispatch, Placement

Full = Literal["isolated", "sequential", "shared-train", "multiplexed"]
"""Devices of its own; all devices for one job after another; rollout devices of its own and one
pool to train on; all devices for all jobs at once, divided by co-location."""
Colocation = Literal["serial", "rollouts", "greedy", "look-ahead"]
"""One sub-stage at a time; only rollouts beside each other; what is ready; critical path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeSpec:
    """One way of running several jobs."""

    name: str
    full: Full
    policy: str = "plait"
    """Of LoRA runs: a name of ``policies.registry``."""
    lora: Literal["shared", "private"] = "private"
    """LoRA runs on one base, or each placed like a full-weight run with its own."""
    side_by_side: bool = False
    """A shared base rolls out and trains on all its devices at once (MARLaaS' runs, co-located as
    JigsawRL does it), instead of on devices for one or the other."""
    pipeline: Literal["sync", "one-step", "async"] | None = None
    """Every job's; ``None`` leaves it to the job."""
    rollout: Literal["own", "together"] | None = None
    """Rollout on devices apart from training's, or on the same ones at its data parallelism;
    ``None`` leaves it to the job."""
    placement: str = "isolated"
    dispatch: str = "fifo"
    colocation: Colocation = "serial"
    merging: bool = False
    """Tails are merged and work is balanced."""


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        # What people do by hand.
        SchemeSpec(name="isolated-sequential", full="sequential"),
        SchemeSpec(name="isolated-split", full="isolated"),
        # Rollout and training on the same devices in turn, so rollout has training's large data
        # parallelism (PlexRL Fig. 2); several jobs wait for each other.
        SchemeSpec(name="verl-like", full="multiplexed", pipeline="sync", rollout="together"),
        # Rollout and training on devices apart, each job on its own (PlexRL's split deployment).
        SchemeSpec(name="split-async", full="isolated", pipeline="one-step", rollout="own"),
        SchemeSpec(name="streamrl-like", full="isolated", pipeline="one-step", rollout="own"),
        SchemeSpec(name="areal-like", full="isolated", pipeline="async", rollout="own"),
        # Phases of disaggregated jobs take fixed turns on shared workers.
        SchemeSpec(
            name="rollmux-like",
            full="shared-train",
            pipeline="sync",
            rollout="own",
            placement="spread",
            dispatch="round-robin",
        ),
        # Serving engines share a device in space; training has it to itself (JigsawRL §5).
        SchemeSpec(
            name="muxserve-like", full="multiplexed", rollout="together", colocation="rollouts"
        ),
        SchemeSpec(
            name="multi-lora-sync", full="isolated", policy="multi-lora-sync", lora="shared"
        ),
        # The papers' own, and all of it together.
        SchemeSpec(name="marlaas", full="isolated", lora="shared"),
        SchemeSpec(
            name="plexrl",
            full="shared-train",
            rollout="own",
            placement="cyclic",
            dispatch="hrrn",
        ),
        SchemeSpec(
            name="jigsawrl",
            full="multiplexed",
            colocation="look-ahead",
            merging=True,
        ),
        SchemeSpec(
            name="plait",
            full="multiplexed",
            lora="shared",
            side_by_side=True,
            placement="cyclic",
            dispatch="hrrn",
            colocation="look-ahead",
            merging=True,
        ),
    )
}


def scheme(name: str) -> SchemeSpec:
    """ConfigError if there is none of that name."""
    if name not in SCHEMES:
        raise ConfigError(f"unknown scheme {name!r}: choose from {', '.join(sorted(SCHEMES))}")
    return SCHEMES[name]


def placement(name: str) -> Placement:
    """A placement policy by name; ConfigError if there is none."""
    match name:
        case "isolated":
            return packing.isolated()
        case "pack":
            return packing.pack()
        case "spread":
            return packing.spread()
        case "spread-backfill":
            return packing.spread(backfill=True)
        case "cyclic":
            return CyclicPlacement()
        case "cyclic-pack":
            return CyclicPlacement(name="cyclic-pack", prefer="pack")
        case "cyclic-fifo":
            return CyclicPlacement(name="cyclic-fifo", backfill=False)
    known = "isolated, pack, spread, spread-backfill, cyclic, cyclic-pack, cyclic-fifo"
    raise ConfigError(f"unknown placement {name!r}: choose from {known}")


def dispatch(name: str) -> Dispatch:
    """A dispatch policy of a pool that full-weight runs share; ConfigError if there is none. Passes
    are not shared: each run has weights of its own."""
    match name:
        case "fair":
            return FairDispatch(merge_rows=0)
        case "fifo":
            return FifoDispatch(merge_rows=0)
        case "hrrn":
            return HrrnDispatch(merge_rows=0)
        case "hrrn-no-switch":
            return HrrnDispatch(name="hrrn-no-switch", merge_rows=0, switch_aware=False)
        case "sjf":
            return ShortestFirst()
        case "round-robin":
            return RoundRobin()
    known = "fair, fifo, hrrn, hrrn-no-switch, sjf, round-robin"
    raise ConfigError(f"unknown dispatch {name!r}: choose from {known}")
