import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import ConfigError
from plait.sim.setting_file import check_setting, read_setting, setting_from, write_setting
from plait.sim.spec import Setting
from plait.sim.workloads import cluster, jigsawrl, marlaas, plexrl

SEARCH = replace(
    jigsawrl.fig_12()["qwen3-4b/search"], constants={"train_mfu": 1.3}, options={"kv_tokens": 3}
)


@pytest.mark.parametrize(
    "setting",
    [SEARCH, marlaas.mixed(), plexrl.shared_pool("7b", 2), cluster.trace(days=1.0)],
)
def test_a_setting_comes_back_as_it_was_written(setting: Setting, tmp_path: Path) -> None:
    file = tmp_path / "setting.json"
    write_setting(setting, file)
    assert read_setting(file) == setting


ONE = {"prompts": [5], "responses": [[7]], "waits_s": [[]], "results": [[]]}
"""A recorded step of one sample."""


def with_job(**change: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["jobs"][0].update(change)


def with_tool(**change: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["jobs"][0]["tool"].update(change)


def with_group(**change: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["cluster"]["groups"][0].update(change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            with_job(rollout_devices=4),
            "a needs 8 devices, the largest node group has 4",
        ),
        (with_job(reward_s=-1.0), "a.reward_s is -1.0: give 0 or more"),
        (with_job(arrival_s=float("nan")), "a.arrival_s is nan"),
        (with_job(groups=0), "a.groups is 0: give 1 or more"),
        (with_job(groups=1.5), r"jobs\[0\].groups is 1.5: give a whole number"),
        (with_job(steps=True), r"jobs\[0\].steps is True: give a whole number"),
        (with_job(slack="much"), r"jobs\[0\].slack is 'much': give a number"),
        (with_job(model=4), r"jobs\[0\].model is 4: give a name"),
        (with_job(reference=1), r"jobs\[0\].reference is 1: give true or false"),
        (with_job(model="qwen3-5b"), "unknown model 'qwen3-5b'"),
        (with_job(pipeline="asynch"), r"unknown jobs\[0\].pipeline 'asynch': did you mean 'async'"),
        (with_job(weights="half"), r"unknown jobs\[0\].weights 'half'"),
        (with_job(weight=0.0), "a.weight is 0.0: give a positive number"),
        (with_job(tensor_parallel=8), "tensor_parallel 8 is more than its 4 train_devices"),
        (with_job(turns=[]), r"a.turns: give 1 to 32 probabilities"),
        (with_job(turns=[0.0]), "at least one positive probability"),
        (with_job(turns=[-0.5, 1.5]), "a.turns is -0.5"),
        (with_job(turns=1.0), r"jobs\[0\].turns is 1.0: give a list"),
        (with_job(prompt={"kind": "fixed", "least": 9, "most": 8}), "a.prompt: least 9"),
        (with_job(prompt={"kind": "empirical", "values": ["x"]}), "prompt.values is 'x'"),
        (with_job(prompt=3), r"jobs\[0\].prompt is 3: give a mapping of names to values"),
        (with_job(name="b"), "2 jobs are called 'b'"),
        (with_job(sampels=4), r"unknown field of jobs\[0\] 'sampels': did you mean 'samples'\?"),
        (with_tool(latency_s=-2.0), "a.tool.latency_s is -2.0"),
        (with_tool(jitter=1.5), "a.tool.jitter is 1.5: give 0 to 1"),
        (with_tool(result={"kind": "empirical"}), "a.tool.result is empirical: give values"),
        (with_group(device="h1000"), "unknown device 'h1000': did you mean 'h100'"),
        (with_group(n_devices=0), "all.n_devices is 0: give 1 or more"),
        (lambda d: d["cluster"]["groups"].clear(), "at least one node group and one job"),
        (lambda d: d["cluster"]["groups"][0].pop("name"), r"cluster.groups\[0\] has no name"),
        (lambda d: d.update(jobs=None), "jobs is not there: give a list"),
        (lambda d: d.update(constants={"mfu": 1.0}), "unknown constant 'mfu'"),
        (lambda d: d.update(constants={"train_mfu": "x"}), "constants.train_mfu is 'x'"),
        (lambda d: d.update(cluster=None), "cluster is not there: give a mapping"),
        (lambda d: d["cluster"].update(group=[]), "unknown field of cluster 'group'"),
        (lambda d: d.update(constants="x"), "constants is 'x': give a mapping"),
        (lambda d: d.update(options="x"), "options is 'x': give a mapping"),
        (lambda d: d.update(options={"sede": 1}), "unknown option 'sede': did you mean 'seed'"),
        (lambda d: d.update(options={"seed": None}), "options.seed is None: give a whole number"),
        (lambda d: d.update(options={"misjudge": "x"}), "options.misjudge is 'x': give a number"),
        (lambda d: d.update(options={"until_s": -1}), "options.until_s is -1: give a number"),
        (lambda d: d.update(options={"kv_tokens": True}), "options.kv_tokens is True: give a"),
        (lambda d: d.update(options={"cancel": {"a": "x"}}), "options.cancel is .* by name"),
        (lambda d: d.update(options={"lost": 3}), "options.lost is 3: give seconds"),
        (lambda d: d.update(options={"lora_groups": {"m": 1}}), "options.lora_groups is"),
        (lambda d: d.update(options={"rollout_from": "x"}), "give group, groups or brought"),
        (lambda d: d.update(options={"estimated": 1}), "options.estimated is 1: give true"),
        (with_job(turns=[True]), "a.turns is True"),
        (with_job(steps=10**9), "a: steps is 1,000,000,000: give at most 1,000,000"),
        (with_job(groups=10**9), "a: a step has .* samples: give at most 1,000,000"),
        (with_job(arrival_s=1e18), r"a: arrival_s has 1e\+18 seconds: give at most"),
        (with_tool(latency_s=1e300), r"a: tool.latency_s has 1e\+300 seconds"),
        (with_job(response={"kind": "fixed", "median": 1e12}), "a: response has .* tokens"),
        (with_job(staleness=10**12), "a: staleness is"),
        (with_group(n_devices=10**9), "the cluster has 1,000,000,000 devices: give at most"),
        (with_job(recorded=[{**ONE, "responses": [[]]}]), "do not belong together"),
        (with_job(recorded=[{**ONE, "reward_s": 1e300}]), r"recorded\[0\] has 1e\+300 seconds"),
        (with_job(recorded=[{**ONE, "waits_s": [[-1.0]]}]), "is -1.0: give 0 or more"),
    ],
)
def test_a_wrong_setting_is_named(change: Callable[[dict[str, Any]], None], message: str) -> None:
    data = json.loads(json.dumps(asdict(SEARCH)))
    change(data)
    with pytest.raises(ConfigError, match=message):
        setting_from(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "cannot read"), ("[]", "version None"), ('{"version": 9}', "version 9, not 1")],
)
def test_another_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_setting(tmp_path / "s.json")


def test_settings_made_in_python_are_checked_too() -> None:
    jobs = (replace(SEARCH.jobs[0], weights="half"),)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown weights 'half'"):
        check_setting(replace(SEARCH, jobs=jobs))
