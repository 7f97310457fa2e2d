from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from plait.core.errors import ConfigError
from plait.sim.costs.models import model_of
from plait.sim.costs.roofline import costs_of
from plait.sim.lengths import draw_step, mean_tokens
from plait.sim.setting_file import check_setting
from plait.sim.spec import Setting
from plait.sim.workloads import cluster, jigsawrl, marlaas, plexrl
from plait.sim.workloads.assumptions import TASKS, response_of
from plait.sim.workloads.make import job, rollout_devices, tensor_parallel, training_devices


def all_settings() -> list[Setting]:
    families: tuple[dict[Any, Setting], ...] = (
        jigsawrl.table_1(),
        jigsawrl.fig_12(),
        jigsawrl.fig_13(),
        jigsawrl.fig_15("one-step"),
        jigsawrl.fig_15("async"),
        jigsawrl.fig_16(),
        jigsawrl.fig_17(),
        jigsawrl.fig_18(),
        jigsawrl.fig_20(),
        marlaas.table_2(),
        marlaas.fig_6(),
    )
    settings = [setting for family in families for setting in family.values()]
    settings += [marlaas.table_4(), marlaas.mixed(), cluster.trace(days=3.0)]
    for size in plexrl.SIZES:
        settings += [plexrl.shared_pool(size, k) for k in (1, 2, 3, 4)]
        settings.append(plexrl.colocated(size))
    return settings


@pytest.mark.parametrize("setting", all_settings())
def test_each_setting_can_be_run(setting: Setting) -> None:
    names = [spec.name for spec in setting.jobs]
    assert len(set(names)) == len(names) > 0
    most = max(group.n_devices for group in setting.cluster.groups)
    kinds = {group.device for group in setting.cluster.groups}
    assert len(kinds) == 1
    for spec in setting.jobs[:3]:
        assert 1 <= spec.train_devices <= most
        check_setting(setting)
        assert spec.train_devices % spec.tensor_parallel == 0
        assert spec.rollout_devices % spec.tensor_parallel == 0
        costs = costs_of(spec.model, *kinds, spec.tensor_parallel)
        assert costs.weight_bytes < costs.memory_bytes
        assert draw_step(spec, 0).n_samples == spec.groups * spec.samples


def test_jigsawrl_is_as_its_text_says() -> None:
    pair = jigsawrl.fig_12()["qwen3-4b/aime"]
    assert [spec.groups * spec.samples for spec in pair.jobs] == [256, 256]
    assert all(spec.reference for spec in pair.jobs)
    drawn = draw_step(pair.jobs[0], 0)
    totals = [sum(r) + sum(b) for r, b in zip(drawn.responses, drawn.results, strict=True)]
    assert max(totals) == 8192
    a, b = pair.jobs
    assert replace(a, name="b") == b
    assert draw_step(a, 0) != draw_step(b, 0)
    turns = [len(row) for row in draw_step(a, 0).responses]
    assert sum(k <= 2 for k in turns) > len(turns) / 2
    assert 4 <= max(turns) <= 5
    assert list(jigsawrl.table_1())[3] == "qwen3-4b/gsm8k/64"
    halves = jigsawrl.fig_15("async")["qwen3-4b/math"].jobs[0]
    assert (halves.rollout_devices, halves.train_devices, halves.staleness) == (2, 2, 4)
    assert [spec.pipeline for spec in jigsawrl.fig_17()["gsm8k"].jobs] == ["sync", "one-step"]


def test_harder_tasks_and_weaker_models_write_longer_and_tuned_ones_more_skewed() -> None:
    def response(task: str, model: str) -> Any:
        return response_of(task, model, model_of(model).n_params)

    assert response("math", "qwen3-4b").median > response("gsm8k", "qwen3-4b").median
    assert response("math", "qwen3-4b").sigma < response("gsm8k", "qwen3-4b").sigma
    assert response("gsm8k", "qwen3-0.6b").median > response("gsm8k", "qwen3-4b").median
    tuned, base = response("gsm8k", "qwen3-4b-instruct"), response("gsm8k", "qwen3-4b")
    assert tuned.median < base.median
    assert tuned.sigma > base.sigma
    assert mean_tokens(TASKS["long-math"].response) == pytest.approx(12_000, rel=0.05)


def test_marlaas_is_as_its_text_says() -> None:
    for model, (rollout, train) in {
        "qwen3-0.6b": (14, 2),
        "qwen3-14b": (12, 4),
        "qwen3-32b": (16, 16),
    }.items():
        setting = marlaas.table_2()[model]
        assert [g.n_devices for g in setting.cluster.groups] == [rollout + train]
        assert {spec.train_devices for spec in setting.jobs} == {train}
        assert len(setting.jobs) == 10
        assert all(len(spec.turns) == 6 and spec.weights == "lora" for spec in setting.jobs)
    assert {s.name: (s.groups, s.response.most) for s in marlaas.mixed().jobs} == {
        "gsm8k-2048": (64, 2048),
        "amc12": (32, 4096),
        "wiki-search": (32, 1024),
    }
    assert [len(s.jobs) for s in marlaas.fig_6().values()] == [1, 2, 4, 8, 16, 32]


def test_pools_are_sized_by_memory() -> None:
    # 16 bytes · 7.6e9 · 2 = 244 GB on 80 GB: 4; 235B: 94 devices, so 128, with 470 GB on 8.
    assert training_devices("qwen2.5-7b", "h100") == 4
    assert training_devices("qwen3-235b-a22b", "h100") == 128
    assert tensor_parallel("qwen3-235b-a22b", "h100") == 8
    assert rollout_devices("qwen3-235b-a22b", "h100") == 32


def test_plexrl_jobs_share_the_training_pool_alone() -> None:
    setting = plexrl.shared_pool("235b", 3)
    (pool,) = setting.cluster.groups
    assert pool.n_devices == 128 + 3 * 32
    # Three times 16 bytes of 235e9 weights, in the memory of 28 hosts.
    assert 3 * 16 * 235e9 < pool.host_bytes == 28 * 2_000_000_000_000
    assert plexrl.saving_ceiling(setting) == pytest.approx((1 - 1 / 3) * 128 / 160)
    assert plexrl.colocated("235b").jobs[0].train_devices == 160


def test_a_trace_is_the_same_for_a_seed_and_goes_on() -> None:
    week, two = cluster.trace(days=7.0), cluster.trace()
    assert week == cluster.trace(days=7.0)
    assert two.jobs[: len(week.jobs)] == week.jobs
    assert week.jobs != cluster.trace(days=7.0, seed=1).jobs[: len(week.jobs)]


def test_a_trace_is_distributed_as_assumed() -> None:
    setting = cluster.trace(days=cluster.THREE_MONTHS, lora_share=0.25)
    jobs = setting.jobs
    assert len(jobs) == pytest.approx(91 * 20, rel=0.1)
    by_day = [spec for spec in jobs if 9 <= spec.arrival_s % 86_400 / 3600 < 21]
    assert len(by_day) / len(jobs) == pytest.approx(0.5 + 0.6 / np.pi, abs=0.04)
    means = [
        mean_tokens(s.response) * sum(k * p for k, p in enumerate(s.turns, start=1)) for s in jobs
    ]
    assert np.mean(means) == pytest.approx(12_000, rel=0.05)
    steps = sorted(spec.steps for spec in jobs)
    assert sum(steps[-len(steps) // 10 :]) > 0.35 * sum(steps)
    assert sum(s.weights == "lora" for s in jobs) / len(jobs) == pytest.approx(0.25, abs=0.04)
    tenants = Counter(spec.tenant for spec in jobs)
    assert tenants["user-0"] > 10 * tenants["user-39"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: job("a", "qwen3-4b", "gsm8"), r"unknown task 'gsm8': did you mean 'gsm8k'\?"),
        (lambda: job("a", "qwen3-5b", "gsm8k"), "unknown model 'qwen3-5b'"),
        (lambda: plexrl.shared_pool("7", 2), "unknown size of PlexRL '7'"),
        (lambda: plexrl.shared_pool("7b", 0), "0 jobs on a pool: give at least 1"),
        (lambda: marlaas.replicas("qwen3-4b", "amc12", 2), "unknown model of MARLaaS"),
        (lambda: marlaas.replicas("qwen3-14b", "amc12", 0), "0 runs: give at least 1"),
        (lambda: jigsawrl.fig_15("sync"), "give one-step or async"),
        (lambda: cluster.trace(days=0.0), "days is 0.0: give a positive number"),
        (lambda: cluster.trace(jobs_per_day=float("inf")), "jobs_per_day is inf"),
        (lambda: cluster.trace(lora_share=2.0), "lora_share is 2.0: give 0 to 1"),
        (lambda: cluster.trace(n_groups=0), "at least one group"),
        (lambda: cluster.trace(group_devices=2), "needs .* a group has 2: give group_devices="),
    ],
)
def test_bad_input_is_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
