from dataclasses import replace

import pytest

from plait.core.errors import ConfigError
from plait.core.ids import RunId, TenantId
from plait.core.runs import Stage
from plait.core.view import AdmissionView, RunView
from plait.policies.admission import KvAdmission
from plait.policies.quotas import FADE_S, Quota, QuotaAdmission

T, U = TenantId("t"), TenantId("u")


def run(name: str, tenant: TenantId = T, stage: Stage = Stage.WAIT_ROLLOUT, **changes) -> RunView:
    plain = RunView(
        run_id=RunId(name),
        tenant_id=tenant,
        order=ord(name[0]),
        weight=1.0,
        priority=0,
        stage=stage,
        stage_since_s=0.0,
        step=0,
        served=0.0,
        kv_blocks=1,
        kv_blocks_worst=1,
    )
    return replace(plain, **changes)


def decide(quota: Quota, *runs: RunView, state: dict | None = None, now: float = 0.0):
    policy = QuotaAdmission(inner=KvAdmission(), quotas=(quota,))
    return policy.decide(AdmissionView(budget_blocks=99, runs=runs), state or {}, now)


def test_so_many_runs_of_a_tenant_at_once() -> None:
    plan, _ = decide(Quota(tenant_id=T, max_runs=2), run("a"), run("b"), run("c"), run("d", U))
    assert plan.admit == ("a", "b", "d")
    (wait,) = plan.waits
    assert (wait.run_id, wait.reason, wait.detail) == ("c", "quota", "t has 2 of at most 2 runs")


def test_runs_under_way_count() -> None:
    quota = Quota(tenant_id=T, max_runs=2)
    plan, _ = decide(quota, run("a", stage=Stage.ROLLOUT), run("b"), run("c"))
    assert plan.admit == ("b",)


def test_a_share_binds_while_others_wait_and_fades() -> None:
    """t has had 90 of 100 device-seconds of late."""
    quota = Quota(tenant_id=T, max_share=0.5)
    rolling = run("a", stage=Stage.ROLLOUT)
    _, state = decide(quota, rolling, run("x", U, Stage.TRAIN))
    served = (replace(rolling, served=90.0), run("x", U, Stage.TRAIN, served=10.0))
    _, state = decide(quota, *served, state=state, now=1.0)
    plan, _ = decide(quota, *served, run("b"), run("y", U), state=state, now=2.0)
    assert plan.admit == ("y",)
    assert plan.waits[0].detail == "t has 90%, its share is 50%"
    assert decide(quota, *served, run("b"), state=state, now=2.0)[0].admit == ("b",)
    later = (served[0], replace(served[1], served=20.0))
    now = 3 * FADE_S
    assert decide(quota, *later, run("b"), run("y", U), state=state, now=now)[0].admit == ("b", "y")


def test_a_tenant_with_nothing_may_always_have_one() -> None:
    quota = Quota(tenant_id=T, max_share=0.01)
    assert decide(quota, run("a"), run("y", U))[0].admit == ("a", "y")


@pytest.mark.parametrize("wrong", [{"max_runs": -1}, {"max_share": 0.0}, {"max_share": 1.5}])
def test_wrong_quotas_are_refused(wrong: dict) -> None:
    with pytest.raises(ConfigError, match="quota of t"):
        Quota(tenant_id=T, **wrong)


def test_two_quotas_for_one_tenant_are_refused() -> None:
    policy = QuotaAdmission(inner=KvAdmission(), quotas=(Quota(tenant_id=T), Quota(tenant_id=T)))
    with pytest.raises(ConfigError, match="merge them"):
        policy.decide(AdmissionView(budget_blocks=1, runs=()), {}, 0.0)
