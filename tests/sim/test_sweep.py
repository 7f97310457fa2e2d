"""plait.sim.sweep and the names: variations of a setting, and what is said of wrong ones."""

from dataclasses import replace

import pytest
from sim_support import SimpleCosts

from plait.core.errors import ConfigError
from plait.sim.lengths import draw_step
from plait.sim.named import alone, known, scheme
from plait.sim.setting_file import check_setting
from plait.sim.simulate import simulate
from plait.sim.spec import Cluster, DeviceGroup, JobSpec, Setting
from plait.sim.sweep import read_axis, variations, varied
from plait.sim.workloads.names import workload, workloads

SETTING = Setting(
    cluster=Cluster(groups=(DeviceGroup(name="g", device="h100", n_devices=4),)),
    jobs=(
        JobSpec(name="a", model="qwen3-0.6b", steps=1),
        JobSpec(name="b", model="qwen3-0.6b", steps=1),
    ),
)


def test_jobs_are_repeated_with_names_and_draws_of_their_own() -> None:
    five = varied(SETTING, "jobs", 5)
    assert [job.name for job in five.jobs] == ["a", "b", "a-2", "b-2", "a-3"]
    drawn = [draw_step(job, 0).responses for job in replace(five, jobs=five.jobs).jobs]
    assert five.jobs[2].seed != five.jobs[0].seed
    assert len(drawn) == 5
    assert [job.name for job in varied(SETTING, "jobs", 1).jobs] == ["a"]


def test_a_name_that_is_taken_is_not_given_again() -> None:
    jobs = (*SETTING.jobs, replace(SETTING.jobs[0], name="a-2"))
    six = varied(replace(SETTING, jobs=jobs), "jobs", 6)
    assert len({job.name for job in six.jobs}) == 6


def test_a_sweep_is_the_product_of_its_axes() -> None:
    axes = [read_axis("jobs=1,2"), read_axis("devices=4,8"), read_axis("constants.prefill_mfu=1.3")]
    cases = dict(variations(SETTING, axes))
    assert len(cases) == 4
    last = cases["jobs=2,devices=8,constants.prefill_mfu=1.3"]
    assert last.cluster.groups[0].n_devices == 8
    assert last.constants == {"prefill_mfu": 1.3}
    assert list(variations(SETTING, [])) == [("", SETTING)]
    assert varied(SETTING, "options.misjudge", 2.0).options == {"misjudge": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("jobs", "has no values"),
        ("job=1", "did you mean 'jobs'"),
        ("jobs=1,two", "'two' is no number"),
        ("jobs=0", "whole numbers from 1 on"),
        ("devices=1.5", "whole numbers from 1 on"),
        ("jobs=1,nan", "is no number"),
        ("jobs=", "is no number"),
    ],
)
def test_a_wrong_sweep_is_told(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_axis(text)


def test_a_sweep_without_end_is_refused() -> None:
    axes = [read_axis(f"jobs={','.join(['1'] * 40)}")] * 2
    with pytest.raises(ConfigError, match="1600 cases"):
        list(variations(SETTING, axes))


def test_a_key_that_is_swept_twice_is_refused() -> None:
    axes = [read_axis("jobs=1,2"), read_axis("jobs=3")]
    with pytest.raises(ConfigError, match="--sweep jobs is given 2 times"):
        list(variations(SETTING, axes))


def test_more_jobs_than_can_be_simulated_are_not_even_made() -> None:
    with pytest.raises(ConfigError, match="there are 1,000,000,000 jobs: give at most 100,000"):
        list(variations(SETTING, [read_axis("jobs=1e9")]))


@pytest.mark.parametrize("name", [*known(), "alone"])
def test_every_named_scheme_runs(name: str) -> None:
    one = alone() if name == "alone" else scheme(name)
    assert one.name == name
    jobs = tuple(
        replace(
            job,
            weights="full" if full else "lora",
            train_devices=2,
            rollout_devices=2 if full and one.full == "shared-train" else 0,
            name=f"{job.name}{full}",
        )
        for full in (False, True)
        for job in SETTING.jobs
    )
    groups = tuple(DeviceGroup(name=n, device="unit", n_devices=4) for n in ("g", "h"))
    outcome = simulate(
        Setting(cluster=Cluster(groups=groups), jobs=jobs),
        one,
        SimpleCosts(memory_bytes=8_000_000_000),
        mode="fluid",
    )
    assert all(len(job.step_ends_s) == 1 for job in outcome.jobs)


def test_an_unknown_scheme_or_workload_is_told_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'jigsawrl'"):
        scheme("jigsaw-rl")
    with pytest.raises(ConfigError, match="did you mean 'marlaas/mixed'"):
        workload("marlaas/mixt")


@pytest.mark.parametrize("name", workloads())
def test_every_named_workload_can_be_simulated(name: str) -> None:
    check_setting(workload(name))
