"""The fair queue is ``fairness`` with less to do: same order, same state, at every decision."""

import json
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_policies_dispatch import item, run, view

from plait.core.runs import Stage
from plait.core.view import DispatchView
from plait.policies import ageing, fairness
from plait.policies.ageing import Ageing, overtaken, stamped
from plait.policies.company import company
from plait.policies.dispatch import FairDispatch, finishing_first, heads_by_run
from plait.policies.fairness import AGE_GRANTS, Claim
from plait.policies.hrrn import HrrnDispatch


def by_the_book(facts: DispatchView, state: dict, most_rows: int) -> tuple[list[str], dict]:
    """Who is served, and the state then, by ``observe``, ``rank`` and ``settle`` alone."""
    heads, _ = heads_by_run(facts)
    runs = {r.run_id: r for r in facts.runs}
    claims = [Claim(run=runs[name], since_s=i.waiting_since_s) for name, i in heads.items()]
    state = fairness.observe(state, facts.runs, claims)
    ranked = fairness.rank(state, claims, facts.resident)
    queue = finishing_first([heads[entry.run.run_id] for entry in ranked])
    due = queue[:1]
    for entry, behind in zip(ranked[1:], queue[1:], strict=True):
        more = entry.run.priority - ranked[0].run.priority
        if more < 0 or (more == 0 and entry.tag > ranked[0].tag + ranked[0].step):
            break
        due.append(behind)
    served = [*queue[:1], *company(due, most_rows)]
    begun = [i.run_id for i in served if not i.finishes]
    notes = {entry.run.run_id: fairness.standing(entry) for entry in ranked}
    told = {i.run_id: notes[i.run_id] for i in queue[len(served) :]}
    return [i.op_id for i in served], {**fairness.settle(state, ranked, begun), "told": told}


class Trainer:
    """A queue that anything may happen to."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.levels = self.rng.choice([(0,), (0, 0, 1), (0, 1, 5, -2)])
        names = [f"{chr(97 + i % 26)}{i}" for i in range(self.rng.choice([1, 4, 30, 90]))]
        self.runs = {n: replace(self.new(n), order=i) for i, n in enumerate(names)}
        self.items: dict = {}
        self.n = 0

    def new(self, name: str):
        weight = self.rng.choice([0.0, 0.5, 1.0, 4.0])
        return run(name, weight=weight, priority=self.rng.choice(self.levels))

    def view(self, now: float) -> DispatchView:
        rng = self.rng
        for name, facts in list(self.runs.items()):
            chance = rng.random()
            if chance < 0.2 and name not in [i.run_id for i in self.items.values()]:
                self.n += 1
                work = replace(
                    item(name, now, op=f"o{self.n}"),
                    rows=rng.choice([0, 60, 100]),
                    finishes=rng.random() < 0.15,
                    switch_s=1.0,
                )
                self.items[work.op_id] = work
            elif chance < 0.23:
                stage = rng.choice([Stage.PAUSED, Stage.WAIT_TRAIN, Stage.WAIT_TRAIN])
                self.runs[name] = replace(facts, stage=stage)
            elif chance < 0.25:
                self.runs[name] = replace(facts, priority=rng.choice(self.levels))
            elif chance < 0.255:
                self.runs[name] = replace(facts, stage=Stage.DONE)
            elif chance < 0.26:
                del self.runs[name]
                self.items = {o: i for o, i in self.items.items() if i.run_id != name}
        resident = tuple(rng.sample(list(self.runs), min(2, len(self.runs))))
        items, runs = tuple(self.items.values()), tuple(self.runs.values())
        return DispatchView(items=items, runs=runs, resident=resident)

    def serve(self, ops: list[str]) -> None:
        for op in ops:
            work = self.items.pop(op)
            facts = self.runs[work.run_id]
            self.runs[work.run_id] = replace(facts, served=facts.served + work.est_s)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), forgets=st.sampled_from([0.0, 0.2, 1.0]))
def test_it_decides_as_fairness_does(seed: int, forgets: float) -> None:
    """``forgets``: how often the state comes back from JSON, without its index."""
    trainer, policy = Trainer(seed), FairDispatch()
    state, book = {}, {}
    for now in range(60):
        facts = trainer.view(float(now))
        if trainer.rng.random() < forgets:
            state = json.loads(json.dumps(state))
        plan, state = policy.decide(facts, state, float(now))
        served, book = by_the_book(facts, book, policy.merge_rows)
        assert [o for o in (plan.op_id, *plan.along) if o is not None] == served
        told = {w.run_id: w.detail for w in plan.waits if w.reason != "paused"}
        assert told.keys() == book["told"].keys()
        assert all(detail.endswith(book["told"][name]) for name, detail in told.items())
        assert state["virtual"] == book["virtual"]
        assert state["runs"].keys() == book["runs"].keys()
        for name, entry in book["runs"].items():
            known = {**state["runs"][name]}
            if entry["waits"]:
                known["over"] = overtaken(state["grants"], known)
                assert {k: known[k] for k in entry} == entry
        trainer.serve(served)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_response_ratios_need_no_memory(seed: int) -> None:
    trainer, policy, state = Trainer(seed), HrrnDispatch(), {}
    for now in range(40):
        facts = trainer.view(float(now))
        plan, state = policy.decide(facts, state, float(now))
        assert plan == policy.decide(facts, {}, float(now))[0]
        trainer.serve([o for o in (plan.op_id, *plan.along) if o is not None])


def test_runs_that_have_not_changed_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    entered = fairness.entered

    def counting(known, facts, **rest):
        looked.append(facts.run_id)
        return entered(known, facts, **rest)

    monkeypatch.setattr(fairness, "entered", counting)
    pairs = [(run(chr(97 + i)), item(chr(97 + i), float(i))) for i in range(20)]
    plan, state = FairDispatch().decide(view(*pairs), {}, 20.0)
    assert len(looked) == 20
    looked.clear()
    served = (replace(pairs[0][0], served=2.0), pairs[0][1])
    plan, state = FairDispatch().decide(view(served, *pairs[1:]), state, 21.0)
    assert looked == ["a"]
    assert plan.op_id == "op-b"


def test_a_grant_ages_all_below_it_together() -> None:
    """Nothing is written for any of them, until they are overdue."""
    grants: dict[str, int] = {}
    queue, entries = Ageing(), {}
    for name, level in (("low", 0), ("mid", 1), ("high", 2)):
        entries[name] = stamped(grants, {"over": 0}, level, 0)
        queue.enter((float(level), level, name), entries[name], grants)
    before = {name: dict(entry) for name, entry in entries.items()}
    for n in range(AGE_GRANTS):
        assert queue.first() is None
        grants["1"] = n + 1
        queue.granted(1, entries, grants)
    assert queue.first() == "low"
    assert entries == before
    assert [overtaken(grants, entries[n]) for n in ("low", "mid", "high")] == [AGE_GRANTS, 0, 0]
    queue.leave("low")
    assert queue.first() is None
    assert ageing.passed(grants, 1) == 0


def test_what_is_left_of_former_waits_does_not_pile_up() -> None:
    queue, grants = Ageing(), {}
    for n in range(1000):
        queue.enter((float(n), 0, "a"), stamped(grants, {"over": 0}, 0, 0), grants)
        queue.leave("a")
    assert sum(map(len, queue._soon.values())) <= AGE_GRANTS + 2
