"""Registry: the ways of sharing a machine by name, as ``plait run --policy NAME`` selects them.

``plait`` is the default (``marlaas`` in older launches, after the paper that it follows); the
others are its published baselines and ablations behind the same interface. An unknown name or
option is refused with the nearest known one.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Literal

from plait.core.errors import ConfigError
from plait.policies.adaptive import STRETCH, AdaptiveAdmission
from plait.policies.admission import KvAdmission
from plait.policies.baselines.one_at_a_time import OneAtATime
from plait.policies.baselines.round_robin import RoundRobin
from plait.policies.baselines.rounds import RoundAdmission, RoundDispatch
from plait.policies.baselines.sjf import ShortestFirst
from plait.policies.baselines.unlimited import AdmitAll
from plait.policies.company import MOST_ROWS
from plait.policies.dispatch import FairDispatch, FifoDispatch
from plait.policies.home import FewestRuns
from plait.policies.hrrn import HrrnDispatch
from plait.policies.moves import EvenOut, StayAll
from plait.policies.protocol import Admission, Dispatch, Moves, Residency, Sharing
from plait.policies.residency import KvResidency, LeaveAll

DEFAULT = "plait"
ALIASES = {"marlaas": DEFAULT}

Topology = Literal["disaggregated", "collocated"]


def make(name: str = DEFAULT, **options: Any) -> Sharing:
    """The policy called ``name``; ConfigError on an unknown name, option or value."""
    canonical = ALIASES.get(name, name)
    if canonical not in _MAKERS:
        raise ConfigError(f"unknown policy {name!r}{_nearest(name, known())}")
    maker, allowed = _MAKERS[canonical]
    for key, value in options.items():
        if key not in allowed:
            raise ConfigError(f"policy {name} has no option {key!r}{_nearest(key, allowed)}")
        if not allowed[key](value):
            raise ConfigError(f"policy {name}: {value!r} is no valid {key}")
    return replace(maker(canonical, **options), options=options)


def known() -> tuple[str, ...]:
    """All names that ``make`` takes, aliases included, sorted."""
    return tuple(sorted([*_MAKERS, *ALIASES]))


def _nearest(word: str, choices: Iterable[str]) -> str:
    choices = sorted(choices)
    close = get_close_matches(word, choices, n=1, cutoff=0.4)
    if close:
        return f": did you mean {close[0]!r}?"
    return f": choose from {', '.join(choices)}" if choices else ": it has none"


def _plait(
    name: str,
    *,
    max_active: int = 0,
    estimate: Literal["measured", "worst"] = "measured",
    dispatch: Literal["fair", "fifo", "hrrn", "hrrn-no-switch", "sjf", "round-robin"] = "fair",
    merge_rows: int = MOST_ROWS,
    residency: Literal["kv", "off"] = "kv",
    moves: Literal["even", "off"] = "even",
    admission: Literal["kv", "adaptive"] = "kv",
    stretch: float = STRETCH,
    topology: Topology = "disaggregated",
) -> Sharing:
    chosen = _DISPATCH[dispatch](merge_rows)
    kept: Residency = KvResidency() if residency == "kv" else LeaveAll()
    moved: Moves = EvenOut() if moves == "even" else StayAll()
    under_kv = KvAdmission(max_active=max_active, estimate=estimate)
    admitting: Admission = under_kv
    if admission == "adaptive":
        admitting = AdaptiveAdmission(inner=under_kv, stretch=stretch)
    return Sharing(
        name=name,
        admission=admitting,
        dispatch=chosen,
        residency=kept,
        home=FewestRuns(),
        moves=moved,
        topology=topology,
    )


def _no_multi_lora(name: str, *, topology: Topology = "disaggregated") -> Sharing:
    return _plait(name, max_active=1, topology=topology)


def _no_admission(name: str, *, topology: Topology = "disaggregated") -> Sharing:
    return replace(_plait(name, topology=topology), admission=AdmitAll())


def _multi_lora_sync(name: str, *, topology: Topology = "disaggregated") -> Sharing:
    return _baseline(name, RoundAdmission(), RoundDispatch(), topology)


def _sequential(name: str, *, topology: Topology = "disaggregated") -> Sharing:
    return _baseline(name, OneAtATime(), FifoDispatch(), topology)


def _single_collocated(name: str) -> Sharing:
    return _sequential(name, topology="collocated")


def _single_disaggregated(name: str) -> Sharing:
    return _sequential(name, topology="disaggregated")


def _baseline(name: str, admission: Admission, dispatch: Dispatch, topology: Topology) -> Sharing:
    """Caches of samples that wait are left to the engine, and samples end where they began."""
    return Sharing(
        name=name,
        admission=admission,
        dispatch=dispatch,
        residency=LeaveAll(),
        home=FewestRuns(),
        moves=StayAll(),
        topology=topology,
    )


def _one_of(*values: str) -> Callable[[Any], bool]:
    return lambda value: value in values


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _stretch(value: Any) -> bool:
    """A target for ``AdaptiveAdmission``: 0 is none, and nobody is faster shared than alone."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and (value == 0 or 1 <= value < float("inf"))


_DISPATCH: dict[str, Callable[[int], Dispatch]] = {
    "fair": lambda rows: FairDispatch(merge_rows=rows),
    "fifo": lambda rows: FifoDispatch(merge_rows=rows),
    "hrrn": lambda rows: HrrnDispatch(merge_rows=rows),
    "hrrn-no-switch": lambda rows: HrrnDispatch(
        name="hrrn-no-switch", merge_rows=rows, switch_aware=False
    ),
    "sjf": lambda rows: ShortestFirst(),
    "round-robin": lambda rows: RoundRobin(),
}
_TOPOLOGY = {"topology": _one_of("disaggregated", "collocated")}
_MAKERS: dict[str, tuple[Callable[..., Sharing], dict[str, Callable[[Any], bool]]]] = {
    DEFAULT: (
        _plait,
        {
            "max_active": _count,
            "estimate": _one_of("measured", "worst"),
            "admission": _one_of("kv", "adaptive"),
            "stretch": _stretch,
            "dispatch": _one_of(*_DISPATCH),
            "merge_rows": _count,
            "residency": _one_of("kv", "off"),
            "moves": _one_of("even", "off"),
            **_TOPOLOGY,
        },
    ),
    "no-multi-lora": (_no_multi_lora, _TOPOLOGY),
    "no-admission": (_no_admission, _TOPOLOGY),
    "multi-lora-sync": (_multi_lora_sync, _TOPOLOGY),
    "sequential": (_sequential, _TOPOLOGY),
    "single-collocated": (_single_collocated, {}),
    "single-disaggregated": (_single_disaggregated, {}),
}
