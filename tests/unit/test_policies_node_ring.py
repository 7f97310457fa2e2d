"""What follows from a group's runs is worked out once: a binding that is not applied, made again,
costs no sums."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_policies_node_groups import HALF, group, placed, waiting

from plait.core.placement import Demand, PlacementView
from plait.policies import node_index, node_ring, rings
from plait.policies.node_groups import CyclicPlacement
from plait.policies.node_search import GroupTable

LATE = Demand(period_s=100.0, bins=(0.0, 0.0, 1.0, 1.0))
NAMES = "abcdef"
GROUPS = tuple(
    group(
        name, *(placed(f"{name}{i}", demand, slack_s=1e3) for i, demand in enumerate((HALF, LATE)))
    )
    for name in NAMES
)


def counted(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, calls: dict[str, int]
) -> None:
    whole: Callable[..., object] = getattr(module, name)
    calls[name] = 0

    def counting(*args: object) -> object:
        calls[name] += 1
        return whole(*args)

    monkeypatch.setattr(module, name, counting)


def test_what_is_bound_in_vain_again_and_again_is_summed_up_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each cold run gets a group, and none is there at the next decision."""
    queue = tuple(waiting(name, None, slack_s=1e3) for name in NAMES)
    view = PlacementView(groups=GROUPS, waiting=queue)
    policy = CyclicPlacement()
    first, state = policy.decide(view, {}, 0.0)
    assert len(first.bind) == len(NAMES)
    calls: dict[str, int] = {}
    counted(monkeypatch, node_index, "entry", calls)
    counted(monkeypatch, node_ring, "_rephased", calls)
    counted(monkeypatch, rings, "delay_s", calls)
    counted(monkeypatch, rings, "overlaps", calls)
    for now in range(1, 4):
        again, state = policy.decide(view, state, float(now))
        assert again.bind == first.bind
    assert calls == {"entry": 0, "_rephased": 0, "delay_s": 0, "overlaps": 0}


def test_facts_that_have_changed_are_summed_up_anew() -> None:
    table = GroupTable()
    before, after = group("g", placed("a")), group("g", placed("a"), placed("b"))
    entry = table.entry(before, 512.0)
    assert table.entry(before, 512.0) is entry
    assert table.entry(after, 512.0)["key"] == node_index.key(after.runs)
    assert table.entry(after, 1024.0) == node_index.entry(after.runs, 1024.0)


def test_another_run_that_joins_has_sums_of_its_own() -> None:
    ring = node_ring.GroupRing((placed("a"),), 512.0)
    ring.made()
    with_b = ring.joined(placed("b"))
    assert ring.joined(placed("b")) is with_b
    assert ring.joined(placed("c")).made()["key"][-1][0] == "c"


shares = st.lists(st.floats(0.0, 1.0, allow_nan=False), min_size=1, max_size=40)
demands = st.builds(
    lambda period_s, bins: Demand(period_s=period_s, bins=tuple(bins)),
    st.floats(1.0, 500.0),
    shares,
)


@settings(max_examples=50, deadline=None)
@given(of=st.lists(st.tuples(st.none() | demands, st.floats(0.0, 500.0)), min_size=1, max_size=8))
def test_a_sum_that_has_grown_is_the_sum_made_from_scratch(of) -> None:
    """To the last bit: plans must not hang on how a ring was come by."""
    runs = [placed(f"r{i}", demand, phase_s=at_s) for i, (demand, at_s) in enumerate(of)]
    ring = node_ring.GroupRing((), 2048.0)
    ring.made()
    for run in runs:
        ring = ring.joined(run)
    assert ring.made() == node_index.entry(runs, 2048.0)


def test_who_joins_is_projected_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = node_ring.GroupRing(tuple(placed(f"r{i}", HALF, phase_s=i) for i in range(9)), 512.0)
    ring.made()
    calls: dict[str, int] = {}
    counted(monkeypatch, rings, "project", calls)
    ring.joined(placed("new", LATE))
    assert calls == {"project": 1}


def test_who_has_left_is_told_in_the_order_of_groups() -> None:
    """What a tenant has is a sum of floats: the order of a set of names would change its last bits
    from one process to the next."""
    names = [f"{name}{i}" for name in NAMES for i in range(3)]
    groups = tuple(group(n, *(placed(f"{n}{i}") for i in range(3))) for n in NAMES)
    before = node_index.refresh({}, PlacementView(groups=groups, waiting=()))
    state = {"groups": before.entries, "horizon_s": before.horizon_s}
    empty = PlacementView(groups=tuple(group(name) for name in NAMES), waiting=())
    assert list(node_index.refresh(state, empty).left) == names
