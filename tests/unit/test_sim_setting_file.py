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
    jigsawrl.fig_12()["qwen3-4b/search"], constants={"train_mfu": 1.3}, options={"window": 3}
)


@pytest.mark.parametrize(
    "setting",
    [SEARCH, marlaas.mixed(), plexrl.shared_pool("7b", 2), cluster.trace(days=1.0)],
)
def test_a_setting_comes_back_as_it_was_written(setting: Setting, tmp_path: Path) -> None:
    file = tmp_path / "setting.json"
    write_setting(setting, file)
    assert read_setting(file) == setting


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
        (with_job(turns=1.0), r"jobs\[0\].turns should be a list, it is float"),
        (with_job(prompt={"kind": "fixed", "least": 9, "most": 8}), "a.prompt: least 9"),
        (with_job(prompt={"kind": "empirical", "values": ["x"]}), "prompt.values is 'x'"),
        (with_job(prompt=3), r"jobs\[0\].prompt should be an object, it is int"),
        (with_job(name="b"), "2 jobs are called 'b'"),
        (with_job(sampels=4), r"unknown field of jobs\[0\] 'sampels': did you mean 'samples'\?"),
        (with_tool(latency_s=-2.0), "a.tool.latency_s is -2.0"),
        (with_tool(jitter=1.5), "a.tool.jitter is 1.5: give 0 to 1"),
        (with_tool(result={"kind": "empirical"}), "a.tool.result is empirical: give values"),
        (with_group(device="h1000"), "unknown device 'h1000': did you mean 'h100'"),
        (with_group(n_devices=0), "all.n_devices is 0: give 1 or more"),
        (lambda d: d["cluster"]["groups"].clear(), "at least one node group and one job"),
        (lambda d: d["cluster"]["groups"][0].pop("name"), r"cluster.groups\[0\] has no name"),
        (lambda d: d.update(jobs=None), "jobs should be a list, it is NoneType"),
        (lambda d: d.update(constants={"mfu": 1.0}), "unknown constant 'mfu'"),
        (lambda d: d.update(constants={"train_mfu": "x"}), "constants.train_mfu is 'x'"),
        (lambda d: d.update(cluster=None), "cluster should be an object"),
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
