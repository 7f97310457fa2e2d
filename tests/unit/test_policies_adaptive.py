"""The control law in a closed loop whose stretch is known: n runs at once are each s(n) slower."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from plait.core.errors import ConfigError
from plait.core.ids import RunId, TenantId
from plait.core.runs import Stage
from plait.core.view import AdmissionView, RunView
from plait.policies import waits
from plait.policies.adaptive import SEAT_STEPS, AdaptiveAdmission
from plait.policies.admission import KvAdmission
from plait.policies.registry import make

ALONE_S = 10.0


class Loop:
    """Runs that roll out for ``ALONE_S · s(n)`` again and again, n being those that do so."""

    def __init__(
        self, policy: AdaptiveAdmission, n_runs: int, stretch: Callable[[int], float], **view
    ) -> None:
        self.policy, self.n, self.stretch, self.view = policy, n_runs, stretch, view
        self.now, self.state = 0.0, {}
        self.left = dict.fromkeys(range(n_runs), 0.0)
        self.stage = dict.fromkeys(range(n_runs), Stage.WAIT_ROLLOUT)
        self.since = dict.fromkeys(range(n_runs), 0.0)
        self.began = dict.fromkeys(range(n_runs), 0.0)
        self.steps, self.tpts = Counter(), dict.fromkeys(range(n_runs), 0.0)
        self.active: list[int] = []
        self.reasons: set[str] = set()
        self.longest_wait_s = 0.0

    def run(self, n_events: int) -> list[int]:
        """How many rolled out at once, after each decision."""
        for _ in range(n_events):
            self.decide()
            rolling = [i for i in self.left if self.stage[i] is Stage.ROLLOUT]
            self.active.append(len(rolling))
            pace = self.stretch(len(rolling))
            took_s = min(self.left[i] for i in rolling) * pace
            self.now += took_s
            for i in rolling:
                self.left[i] -= took_s / pace
                if self.left[i] <= 1e-9:
                    self.stage[i], self.since[i] = Stage.WAIT_ROLLOUT, self.now
                    self.steps[i] += 1
                    self.tpts[i] = self.now - self.began[i]
        return self.active

    def decide(self) -> None:
        runs = tuple(
            RunView(
                run_id=RunId(f"r{i}"),
                tenant_id=TenantId("t"),
                order=i,
                weight=1.0,
                priority=0,
                stage=self.stage[i],
                stage_since_s=self.since[i],
                step=self.steps[i],
                served=self.steps[i] * ALONE_S,
                kv_blocks=self.view.get("blocks", 1),
                kv_blocks_worst=self.view.get("blocks", 1),
                tpts_s=self.tpts[i],
                alone_s=ALONE_S,
            )
            for i in range(self.n)
        )
        view = AdmissionView(budget_blocks=self.view.get("budget", 100), runs=runs)
        plan, self.state = self.policy.decide(view, self.state, self.now)
        self.state = json.loads(json.dumps(self.state))
        asking = {r.run_id for r in runs if r.stage is Stage.WAIT_ROLLOUT}
        told = [w.run_id for w in plan.waits]
        assert sorted([*plan.admit, *told]) == sorted(asking)
        assert [w.position for w in plan.waits] == list(range(1, len(told) + 1))
        assert all(w.detail for w in plan.waits)
        self.reasons |= {w.reason for w in plan.waits}
        for run_id in plan.admit:
            i = int(run_id[1:])
            self.longest_wait_s = max(self.longest_wait_s, self.now - self.since[i])
            self.stage[i], self.left[i], self.began[i] = Stage.ROLLOUT, ALONE_S, self.now


def usual(active: list[int]) -> int:
    """What it settles at."""
    return Counter(active[len(active) // 2 :]).most_common(1)[0][0]


def test_it_goes_up_while_it_pays_and_no_further() -> None:
    """n / s(n): 1, 1.7, 2.1, 1.8, 1.4, ...: three is best."""
    curve = [1.0, 1.0, 1.2, 1.4, 2.2, 3.6, 5.0, 7.0, 9.0]
    loop = Loop(AdaptiveAdmission(stretch=0.0), 8, lambda n: curve[n])
    active = loop.run(600)
    assert active[0] == 1, "one alone is measured first"
    assert usual(active) == 3
    assert max(active) == 4, "one more is tried, and given up"
    tries = sum(a < 4 <= b for a, b in pairwise(active))
    assert tries <= 8, "what did not pay is tried ever more seldom"
    assert loop.reasons == {waits.STRETCH}


def test_where_sharing_loses_runs_go_one_by_one() -> None:
    loop = Loop(AdaptiveAdmission(), 6, lambda n: n**1.3)
    active = loop.run(400)
    assert usual(active) == 1
    assert sum(n == 1 for n in active) > 0.85 * len(active)


@pytest.mark.parametrize(("target", "most"), [(1.3, 3), (1.7, 5), (3.0, 8)])
def test_the_target_is_held_though_more_would_be_faster(target: float, most: int) -> None:
    """s(n) = 1 + 0.15 (n − 1), so throughput grows all the way."""
    loop = Loop(AdaptiveAdmission(stretch=target), 8, lambda n: 1.0 + 0.15 * (n - 1))
    active = loop.run(1200)
    assert usual(active) == most
    settled = active[len(active) // 2 :]
    above = sum(1.0 + 0.15 * (n - 1) > 1.1 * target for n in settled) / len(settled)
    assert above < 0.15


def test_it_backs_off_when_the_machine_gets_slower() -> None:
    factor = [0.1]
    loop = Loop(AdaptiveAdmission(stretch=2.0), 8, lambda n: 1.0 + factor[0] * (n - 1))
    assert usual(loop.run(800)) >= 6
    factor[0] = 1.5
    del loop.active[:]
    assert usual(loop.run(800)) == 1


def test_everybody_has_a_seat_in_turn() -> None:
    loop = Loop(AdaptiveAdmission(), 6, lambda n: n**1.3)
    loop.run(600)
    counts = [loop.steps[i] for i in range(6)]
    assert min(counts) > 0.7 * max(counts)
    assert loop.longest_wait_s <= 3 * 6 * SEAT_STEPS * ALONE_S


def test_the_cache_remains_the_hard_limit() -> None:
    loop = Loop(AdaptiveAdmission(stretch=0.0), 6, lambda n: 1.0, blocks=40)
    active = loop.run(300)
    assert max(active) == 2
    assert waits.KV_BUDGET in loop.reasons


def test_nobody_waits_for_a_seat_where_there_is_enough_of_them() -> None:
    loop = Loop(AdaptiveAdmission(stretch=0.0), 4, lambda n: 1.0)
    assert usual(loop.run(300)) == 4


def test_it_is_chosen_by_options() -> None:
    sharing = make("plait", admission="adaptive", stretch=1.5, max_active=3)
    assert sharing.admission == AdaptiveAdmission(inner=KvAdmission(max_active=3), stretch=1.5)
    for wrong in (0.5, True, float("nan"), float("inf"), "2"):
        with pytest.raises(ConfigError, match="no valid stretch"):
            make("plait", stretch=wrong)
    with pytest.raises(ConfigError, match="nobody is faster"):
        AdaptiveAdmission(stretch=0.9)
