"""Who shares a pass with the first in the order of service."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_policies_dispatch import item, run, view

from plait.core.runs import Stage
from plait.core.view import WorkItem
from plait.policies.company import MOST_ROWS, company
from plait.policies.dispatch import FairDispatch, FifoDispatch
from plait.policies.registry import make

NAMES = "abcdefgh"


def gradient(name: str, rows: int, since_s: float = 0.0) -> WorkItem:
    return replace(item(name, since_s), rows=rows)


def joined(queue: list[WorkItem], most_rows: int = 100) -> list[str]:
    return [i.run_id for i in company(queue, most_rows)]


def test_small_gradients_go_together_while_they_fit() -> None:
    queue = [gradient(name, 30) for name in "abcd"]
    assert joined(queue) == ["b", "c"]
    assert joined(queue, 120) == ["b", "c", "d"]
    assert joined(queue, 59) == []
    assert joined([]) == []


def test_nobody_is_overtaken_for_the_sake_of_company() -> None:
    """A small one behind a large one, or behind what must run by itself, waits its turn."""
    assert joined([gradient("a", 30), gradient("b", 90), gradient("c", 10)]) == []
    assert joined([gradient("a", 30), gradient("b", 0), gradient("c", 10)]) == []
    assert joined([gradient("a", 0), gradient("b", 10)]) == []
    assert joined([gradient("a", 300), gradient("b", 10)]) == []


def test_nobody_slows_down_a_higher_priority() -> None:
    def along(**priorities: int) -> tuple[str, ...]:
        pairs = [(run(n, priority=priorities.get(n, 0)), gradient(n, 10)) for n in "abc"]
        return FairDispatch().decide(view(*pairs), {}, 1.0)[0].along

    assert along() == ("op-b", "op-c")
    assert along(a=1) == ()
    assert along(a=1, b=1) == ("op-b",)


def test_who_has_had_its_share_does_not_go_along() -> None:
    """Two runs that are always waiting: the lighter one joins only when it is due anyway."""
    served = {"heavy": 0.0, "light": 0.0}
    heavy, light, state = run("heavy", weight=4.0), run("light"), {}
    turns = []
    for n in range(40):
        now = view(
            (replace(heavy, served=served["heavy"]), gradient("heavy", 10, n)),
            (replace(light, served=served["light"]), gradient("light", 10, n)),
        )
        plan, state = FairDispatch().decide(now, state, float(n))
        turn = [op_id.removeprefix("op-") for op_id in (plan.op_id, *plan.along)]
        turns.append(turn)
        for name in turn:
            served[name] += 1.0
    assert ["heavy", "light"] in turns or ["light", "heavy"] in turns
    assert served["heavy"] / served["light"] == pytest.approx(4.0, rel=0.15)


def test_zero_rows_switch_it_off() -> None:
    assert joined([gradient("a", 1), gradient("b", 1)], 0) == []


@given(rows=st.lists(st.integers(0, 80), max_size=8), most_rows=st.integers(0, 200))
def test_company_is_what_stands_next(rows: list[int], most_rows: int) -> None:
    queue = [gradient(name, n) for name, n in zip(NAMES, rows, strict=False)]
    found = joined(queue, most_rows)
    assert found == [i.run_id for i in queue[1 : 1 + len(found)]]
    if found:
        together = queue[: 1 + len(found)]
        assert all(i.rows for i in together)
        assert sum(i.rows for i in together) <= most_rows


@pytest.mark.parametrize("policy", [FairDispatch(), FifoDispatch()], ids=lambda p: p.name)
def test_who_is_left_behind_is_told_its_place(policy) -> None:
    pairs = [
        (run(name), gradient(name, MOST_ROWS // 2, since_s))
        for name, since_s in (("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0))
    ]
    plan, _ = policy.decide(view(*pairs), {}, 5.0)
    assert (plan.op_id, plan.along) == ("op-a", ("op-b",))
    assert [(w.run_id, w.position) for w in plan.waits] == [("c", 1), ("d", 2)]
    assert plan.waits[0].detail.startswith("update stands behind b, about 4.0 s of work")
    off = replace(policy, merge_rows=0)
    assert off.decide(view(*pairs), {}, 5.0)[0].along == ()


def test_going_along_is_a_turn_and_overtakes_nobody() -> None:
    pairs = [(run(name), gradient(name, 10, since_s)) for name, since_s in (("a", 1), ("b", 2))]
    last = (run("c"), gradient("c", MOST_ROWS, 3.0))
    plan, state = FairDispatch().decide(view(*pairs, last), {}, 5.0)
    assert plan.along == ("op-b",)
    assert state["runs"]["c"]["over"] == 0
    assert not state["runs"]["b"]["waits"]
    # Both have now had a turn; who had none is next, whatever its size.
    served = [(replace(r, served=2.0), i) for r, i in pairs]
    plan, _ = FairDispatch().decide(view(*served, last), state, 6.0)
    assert (plan.op_id, plan.along) == ("op-c", ())


def test_an_update_is_finished_before_anybody_goes_together() -> None:
    ending = replace(item("c", 9.0), finishes=True)
    pairs = [(run(name), gradient(name, 10)) for name in "ab"]
    plan, _ = FairDispatch().decide(view(*pairs, (run("c"), ending)), {}, 9.0)
    assert (plan.op_id, plan.along) == ("op-c", ())


def test_a_paused_run_does_not_go_along() -> None:
    pairs = [
        (run("a"), gradient("a", 10)),
        (run("b", Stage.PAUSED), gradient("b", 10)),
        (run("c"), gradient("c", 10)),
    ]
    plan, _ = FairDispatch().decide(view(*pairs), {}, 1.0)
    assert (plan.op_id, plan.along) == ("op-a", ("op-c",))


def test_it_is_an_option_of_the_policy() -> None:
    for dispatch in ("fair", "fifo"):
        made = make("marlaas", dispatch=dispatch, merge_rows=0)
        assert made.dispatch.merge_rows == 0
        assert make("marlaas", dispatch=dispatch).dispatch.merge_rows == MOST_ROWS
