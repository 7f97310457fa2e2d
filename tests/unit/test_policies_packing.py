from dataclasses import replace

import pytest

from plait.core.errors import ConfigError
from plait.core.ids import RunId, TenantId
from plait.core.placement import GroupFacts, GroupId, PlacedRun, PlacementView, WaitingRun
from plait.policies.baselines import packing
from plait.policies.baselines.schemes import SCHEMES, dispatch, placement, scheme


def waiting(name: str, **changes) -> WaitingRun:
    plain = WaitingRun(
        run_id=RunId(name),
        tenant_id=TenantId("t"),
        order=ord(name[0]),
        since_s=0.0,
        n_devices=4,
        device_bytes=10,
        host_bytes=10,
        slack_s=0.0,
    )
    return replace(plain, **changes)


def group(name: str, *runs: str, **changes) -> GroupFacts:
    there = tuple(
        PlacedRun(run_id=RunId(r), demand=None, phase_s=0.0, host_bytes=10, slack_s=0.0)
        for r in runs
    )
    plain = GroupFacts(
        group_id=GroupId(name), n_devices=8, device_bytes=10, host_bytes=40, runs=there
    )
    return replace(plain, **changes)


def decide(policy, groups: list[GroupFacts], *runs: WaitingRun) -> tuple[dict, dict]:
    view = PlacementView(groups=tuple(groups), waiting=runs)
    plan, _ = policy.decide(view, {}, 0.0)
    return {b.run_id: b.group_id for b in plan.bind}, {w.run_id: w.reason for w in plan.waits}


def test_pack_fills_one_group_before_the_next() -> None:
    runs = [waiting(name) for name in "abcde"]
    bound, _ = decide(packing.pack(), [group("f"), group("g")], *runs)
    assert list(bound.values()) == ["f"] * 4 + ["g"]


def test_spread_takes_the_group_with_the_fewest() -> None:
    groups = [group("f", "x"), group("g")]
    bound, _ = decide(packing.spread(), groups, waiting("a"), waiting("b"), waiting("c"))
    assert list(bound.values()) == ["g", "f", "g"]


def test_isolated_gives_devices_away_once() -> None:
    runs = [waiting("a", n_devices=5), waiting("b", n_devices=4), waiting("c", n_devices=1)]
    bound, told = decide(packing.isolated(), [group("f")], *runs)
    assert bound == {"a": "f"}
    assert told == {"b": "devices", "c": "behind"}


def test_backfill_lets_who_fits_overtake() -> None:
    groups = [group("f", "x", "y")]
    runs = [waiting("a", host_bytes=30), waiting("b")]
    assert decide(packing.spread(), groups, *runs) == ({}, {"a": "devices", "b": "behind"})
    assert decide(packing.spread(backfill=True), groups, *runs) == ({"b": "f"}, {"a": "devices"})


def test_who_never_fits_holds_up_nobody() -> None:
    bound, told = decide(packing.pack(), [group("f")], waiting("a", n_devices=9), waiting("b"))
    assert (bound, told) == ({"b": "f"}, {"a": "never_fits"})


def test_a_group_may_have_a_limit_of_runs() -> None:
    policy = replace(packing.pack(), max_runs=1)
    bound, _ = decide(policy, [group("f"), group("g")], waiting("a"), waiting("b"))
    assert bound == {"a": "f", "b": "g"}


def test_every_scheme_is_made_of_policies_that_exist() -> None:
    for name, spec in SCHEMES.items():
        assert scheme(name) is spec
        assert placement(spec.placement).name
        assert dispatch(spec.dispatch).name == spec.dispatch


@pytest.mark.parametrize("named", [scheme, placement, dispatch])
def test_unknown_names_are_refused(named) -> None:
    with pytest.raises(ConfigError, match="choose from"):
        named("nonsense")
