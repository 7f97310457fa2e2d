from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from test_policies_dispatch import item, run

from plait.core.runs import Stage
from plait.core.view import DispatchView
from plait.policies import heads as module
from plait.policies.heads import Heads, changed


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(0, 300))
def test_what_is_gone_and_what_has_come_is_found(seed: int, n: int) -> None:
    """Whatever is told besides is told on both sides."""
    rng = Random(seed)
    old = [item(f"r{i}") for i in range(n)]
    lost = rng.choice([0.0, 0.03, 0.5])
    new = [i for i in old if rng.random() >= lost]
    for k in range(rng.randint(0, 5)):
        new.insert(rng.randint(0, len(new)), item(f"new{k}"))
    gone, come = ({id(i) for i in found} for found in changed(old, new))
    before, now = {id(i) for i in old}, {id(i) for i in new}
    assert before - now <= gone <= before
    assert now - before <= come <= now
    assert gone - (before - now) == come - (now - before)


def test_only_what_has_changed_is_told() -> None:
    old = [item(f"r{i}") for i in range(1000)]
    new = [*old[:300], *old[302:700], replace(old[700]), *old[701:], item("x")]
    gone, come = changed(old, new)
    assert gone == [*old[300:302], old[700]]
    assert come == [new[698], new[-1]]


def test_many_in_a_row_that_have_changed_in_their_places_are_told_and_no_others() -> None:
    old = [item(f"r{i}") for i in range(1000)]
    new = [replace(i, est_s=9.0) if 300 <= k < 500 else i for k, i in enumerate(old)]
    gone, come = changed(old, new)
    assert list(map(id, gone)) == list(map(id, old[300:500]))
    assert list(map(id, come)) == list(map(id, new[300:500]))


def view(*pairs, resident=()) -> DispatchView:
    runs = {r.run_id: r for r, _ in pairs}
    return DispatchView(
        items=tuple(i for _, i in pairs if i is not None),
        runs=tuple(runs.values()),
        resident=resident,
    )


def test_runs_of_which_nothing_has_changed_are_not_touched() -> None:
    pairs = [(run(chr(97 + i)), item(chr(97 + i))) for i in range(20)]
    heads = Heads()
    assert len(heads.follow(view(*pairs))) == 20
    assert heads.follow(view(*pairs)) == set()
    anew = [(replace(r, step=1), replace(i)) for r, i in pairs]
    assert heads.follow(view(*anew)) == set()
    anew[3] = (replace(anew[3][0], served=1.0), anew[3][1])
    anew[5] = (anew[5][0], replace(anew[5][1], est_s=9.0))
    assert heads.follow(view(*anew, resident=("g",))) == {"d", "f", "g"}
    assert heads.of["f"].est_s == 9.0
    assert heads.follow(view(*anew[1:], resident=("g",))) == {"a"}
    assert "a" not in heads.of


def test_of_several_items_the_longest_waiting_is_the_head_also_later() -> None:
    a = run("a")
    first, second = item("a", 1.0, op="first"), item("a", 2.0, op="second")
    heads = Heads()
    heads.follow(view((a, second)))
    assert heads.of["a"] is second
    heads.follow(view((a, second), (a, first)))
    assert heads.of["a"] is first
    heads.follow(view((a, second)))
    assert heads.of["a"] is second


def test_paused_and_ended_runs_have_no_head_until_they_go_on() -> None:
    work = replace(item("a"), finishes=True)
    heads = Heads()
    heads.follow(view((run("a", Stage.PAUSED), work)))
    assert (heads.of, heads.paused, heads.finishing) == ({}, {"a": work}, set())
    heads.follow(view((run("a"), work)))
    assert (heads.of, heads.paused, heads.finishing) == ({"a": work}, {}, {"a"})
    heads.follow(view((run("a", Stage.DONE), work)))
    assert (heads.of, heads.paused, heads.finishing) == ({}, {}, set())
    assert module.FEW < module.STRIDE
