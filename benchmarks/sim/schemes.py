"""Schemes that JigsawRL is compared with, and ours, for full-weight pipelines."""

from plait.policies import registry
from plait.policies.balancing import EqualFinish
from plait.policies.baselines.rollout_multiplexing import RolloutMultiplexing
from plait.policies.colocation import Greedy, LookAhead
from plait.policies.merging import GainMerging
from plait.profiles.slowdown import Analytic
from plait.sim.schemes import Scheme, Serial, Together, isolated

SHARING = registry.make(registry.DEFAULT)


def verl() -> Scheme:
    """Verl-like: each pipeline has all devices and alternates; one after the other."""
    return isolated()


def rollmux() -> Scheme:
    """RollMux-like: one half rolls out, the other trains; pipelines take turns, so that one rolls
    out while the other trains. For settings with devices apart (``apart``)."""
    return Scheme(
        name="rollmux-like",
        sharing=SHARING,
        placement=Together(),
        full="multiplexed",
        colocation=Serial(),
        halves="same",
    )


def muxserve() -> Scheme:
    """MuxServe-like: rollouts side by side, training alone."""
    return Scheme(
        name="muxserve-like",
        sharing=SHARING,
        placement=Together(),
        full="multiplexed",
        colocation=RolloutMultiplexing(),
    )


def ours(
    slowdown: Analytic | None = None,
    *,
    greedy: bool = False,
    merging: bool = True,
    balancing: bool = True,
) -> Scheme:
    """Look-ahead co-location, merging and balancing; parts of it for the ablation."""
    model = slowdown or Analytic()
    return Scheme(
        name="ours",
        sharing=SHARING,
        placement=Together(),
        full="multiplexed",
        colocation=Greedy(slowdown=model) if greedy else LookAhead(slowdown=model),
        merging=GainMerging(slowdown=model) if merging else None,
        balancing=EqualFinish() if balancing else None,
    )


def plexrl() -> Scheme:
    """Rollout devices of their own, one training pool for all runs of a node group."""
    return Scheme(
        name="plexrl-like",
        sharing=SHARING,
        placement=Together(),
        full="shared-train",
    )
