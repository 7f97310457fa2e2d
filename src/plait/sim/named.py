"""Named: schemes as ``plait sim --policy NAME`` selects them.

A live policy's name (``plait run --policy``) shares one engine and one trainer between LoRA jobs
and gives full-weight jobs devices of their own. The papers' ways and ours for full-weight jobs
are those of ``policies.baselines.schemes``. Some of these fix the pipeline of every job, or whether
rollout has devices of its own (``arranged``); with others jobs keep what their workload gives them.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from plait.policies import registry
from plait.policies.balancing import EqualFinish
from plait.policies.baselines import schemes
from plait.policies.baselines.rollout_multiplexing import RolloutMultiplexing
from plait.policies.colocation import Greedy, LookAhead
from plait.policies.merging import GainMerging
from plait.sim.costs.names import pick
from plait.sim.schemes import Colocation, Scheme, Serial, isolated, lora

LIVE = "as plait run --policy takes it; full-weight jobs get devices of their own"
COLOCATION: Mapping[str, Colocation] = {
    "serial": Serial(),
    "greedy": Greedy(),
    "look-ahead": LookAhead(),
    "rollouts": RolloutMultiplexing(),
}
_LISTED = {
    "marlaas": "LoRA jobs share one base; full-weight jobs get devices of their own (MARLaaS)",
    "verl-like": "full-weight jobs share a node group's devices, one stage at a time, synchronous",
    "rollmux-like": "full-weight jobs roll out on half, take fixed turns on one training pool",
    "muxserve-like": "full-weight jobs share devices, rollouts side by side, training alone",
    "split-async": "full-weight jobs roll out on half of their own devices, one step ahead",
    "streamrl-like": "the same: StreamRL's pipeline, each job by itself",
    "areal-like": "the same, up to four steps ahead, no device waiting for the longest sample",
    "plexrl": "full-weight jobs share a training pool, interleaved on a cycle (PlexRL)",
    "jigsawrl": "full-weight jobs share devices, two stages side by side (JigsawRL)",
    "plait": "LoRA jobs share one base, full-weight jobs devices, placed on a cycle: all of ours",
}


def scheme(name: str) -> Scheme:
    """The scheme called ``name``; ConfigError with the nearest known one."""
    makers: dict[str, Callable[[], Scheme]] = {
        **{live: partial(lora, live) for live in registry.known()},
        **{listed: partial(_published, listed) for listed in _LISTED},
        "isolated": isolated,
        "greedy": _greedy,
    }
    return pick("policy", name, makers)()


def known() -> dict[str, str]:
    """All names, with a line for each."""
    return {
        **dict.fromkeys(registry.known(), LIVE),
        **_LISTED,
        "isolated": "every job on devices of its own, LoRA jobs too",
        "greedy": "as jigsawrl, by what fits best at the moment, without looking ahead",
    }


def alone() -> Scheme:
    """What a job by itself is simulated under, for the stretch."""
    return replace(isolated(private_lora=False), name="alone")


def _published(name: str) -> Scheme:
    spec = schemes.scheme(name)
    full = spec.full
    assert full != "sequential", name
    return Scheme(
        name=name,
        sharing=registry.make(spec.policy),
        full=full,
        lora=spec.lora,
        pipeline=spec.pipeline,
        rollout=spec.rollout,
        side_by_side=spec.side_by_side,
        placement=schemes.placement(spec.placement),
        dispatch=schemes.dispatch(spec.dispatch),
        colocation=COLOCATION[spec.colocation],
        merging=GainMerging() if spec.merging else None,
        balancing=EqualFinish() if spec.merging else None,
    )


def _greedy() -> Scheme:
    return replace(_published("jigsawrl"), name="greedy", colocation=Greedy())
