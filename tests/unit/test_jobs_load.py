"""Job files: what they may say, and one line for every mistake."""

from pathlib import Path

import pytest
from foreign_models import foreign_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.core.errors import ConfigError, ModelError
from plait.core.runs import ALL_LINEAR
from plait.jobs.load import dump_resolved, load_jobs
from plait.jobs.spec import JobSpec
from plait.models.registry import resolve

ONE = "environment: {name: tiny-sum}\nsteps: 3\n"


@pytest.fixture
def load(tmp_path: Path):
    def loader(text: str) -> tuple[JobSpec, ...]:
        (tmp_path / "my.yaml").write_text(text)
        return load_jobs([tmp_path / "my.yaml"])

    return loader


def test_one_job_at_the_top_is_called_like_its_file(load, tmp_path: Path) -> None:
    (job,) = load(ONE)
    assert (job.name, job.model, job.steps) == ("my", "tiny", 3)
    assert job.base_dir == str(tmp_path)


def test_defaults_are_merged_section_by_section(load) -> None:
    a, b, c = load(
        """
model: smollm2-135m
defaults:
  steps: 5
  optimizer: {learning_rate: 1e-3, beta1: 0.5}
  environment: {name: tiny-sum, latency_s: 2}
jobs:
  - {name: a}
  - {name: b, model: tiny, optimizer: {beta1: 0.6}, environment: {latency_s: 3}}
  - {name: c, environment: {name: tiny-sort}}
"""
    )
    assert (a.model, b.model) == ("smollm2-135m", "tiny")
    assert (b.optimizer.learning_rate, b.optimizer.beta1) == (1e-3, 0.6)
    assert b.environment.config == {"latency_s": 3}
    assert c.environment.config == {}  # another environment knows nothing of this one's keys


def test_jobs_without_a_name_are_called_like_their_environment(load) -> None:
    jobs = load("jobs: [{environment: {name: e}, steps: 1}, {environment: {name: f}, steps: 1}]")
    assert [job.name for job in jobs] == ["e", "f"]


def test_matrices_of_file_and_job_multiply(load) -> None:
    jobs = load(
        """
matrix: {seed: [1, 2]}
defaults: {environment: {name: e}, steps: 1}
jobs:
  - {name: a, matrix: {adapter.rank: [4, 8]}}
  - {name: b}
"""
    )
    assert [job.name for job in jobs] == [
        "a-r4-s1",
        "a-r4-s2",
        "a-r8-s1",
        "a-r8-s2",
        "b-s1",
        "b-s2",
    ]
    assert [(job.adapter.rank, job.seed) for job in jobs][:2] == [(4, 1), (4, 2)]


def test_a_sweep_of_one_job(load) -> None:
    assert [job.name for job in load(ONE + "matrix: {seed: [1, 2]}")] == ["my-s1", "my-s2"]


def test_paths_are_relative_to_the_file(load, tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    (job,) = load(f"model: my-model\n{ONE}")
    assert job.base_dir == str(tmp_path)  # where the environment looks for its files
    assert job.model == str(tmp_path / "my-model")


@pytest.mark.parametrize("model", ["x" * 300, "./" + "x" * 300, r'"./a\0b"', r'"a\0b"'])
def test_a_model_that_can_be_no_directory_is_left_to_who_looks_for_it(load, model: str) -> None:
    (job,) = load(f"model: {model}\n{ONE}")
    with pytest.raises(ModelError):
        resolve(job.model)


def test_several_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(ONE)
    assert [j.name for j in load_jobs([tmp_path / "a.yaml", tmp_path / "b.yaml"])] == ["a", "b"]


JOBS = "jobs:\n  - name: a\n    environment: {name: e}\n    steps: 1\n"


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (JOBS + "    optimiser: {}", "5:5", "`optimiser` in jobs[0]: did you mean `optimizer`?"),
        (JOBS + "    optimizer: {lr: 1}", "5:17", "`lr` in jobs[0].optimizer: known: learning"),
        (JOBS + "    optimizer:\n      learningrate: 1", "6:7", "did you mean `learning_rate`?"),
        (JOBS + "    staleness: -1", "5:5", "staleness must be greater than or equal to 0, not -"),
        (JOBS + "    groups: many", "5:5", "jobs[0].groups must be a valid integer, not 'many'"),
        (JOBS + "    seed: 1.5", "5:5", "jobs[0].seed must be a valid integer, not 1.5"),
        (JOBS + "    limits: 3", "5:5", "jobs[0].limits must map keys to values, not 3"),
        (JOBS + "    algorithm: {name: gppo}", "5:17", "not 'gppo' (did you mean `grpo`?)"),
        (JOBS + "    trackers: [wandbb]", "5:16", "[0].trackers[0] must be 'wandb' or 'trackio'"),
        (JOBS + "    controller: no", "5:5", "must look like `module:Class`"),
        (JOBS + "    matrix: {optimizer.lr: [1]}", "5:14", "unknown key `lr` in jobs[0].optimizer"),
        (JOBS + "    matrix: {optimizer.learning_rate: 1}", "5:14", "must be a list"),
        (JOBS + "matrix: {adapter.rank: [99]}", "5:10", "jobs[0].adapter.rank must be less than"),
        (JOBS + "defaults: {grups: 2}", "5:12", "`grups` in jobs[0]: did you mean `groups`?"),
        (JOBS + "defaults: {optimizer: {eps: 0}}", "5:24", "optimizer.eps must be greater than"),
        (JOBS + "defaults: {name: x}", "5:12", "`name` cannot be a default"),
        (JOBS + "default: {}", "5:1", "`default` beside `jobs`: did you mean `defaults`?"),
        (JOBS + "steps: 3", "5:1", "`steps` belongs to a job"),
        (JOBS + "  - {name: a, environment: {name: e}, steps: 1}", "5:6", "a second job is called"),
        (JOBS + "  - 3", "5:5", "jobs[1] must map keys to values"),
        ("jobs: []", "1:1", "must be a list of jobs"),
        ("jobs: {a: 1}", "1:1", "must be a list of jobs"),
        ("defaults: {}", "1:1", "`defaults` needs `jobs"),
        ("- 1", "1:1", "a job file maps keys to values"),
        ("steps: 3", "1:1", "the job needs `environment`"),
        ("environment: {x: 1}\nsteps: 1", "1:1", "environment needs `name`"),
        ("environment: {name: e}", "1:1", "give `steps`, `target_reward` or both"),
        (ONE + "rewards: [{function: f}]", "3:12", "must look like `module:name`"),
    ],
)  # fmt: skip
def test_every_mistake_is_one_line_with_its_place(
    load, tmp_path: Path, text: str, line: str, why: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'my.yaml'}:{line}: ")
    assert why in message
    assert "\n" not in message


def test_a_misspelt_key_is_named_before_what_follows_from_it(load) -> None:
    with pytest.raises(ConfigError, match=r"unknown key `step` .*`steps`\? \(and 1 more\)"):
        load("groups: 0\nenvironment: {name: e}\nstep: 3\n")


def test_a_name_used_in_two_files_is_refused_with_both_places(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(f"name: same\n{ONE}")
    with pytest.raises(ConfigError, match=r"b.yaml:1:1: .*`same` \(the first: .*a.yaml:1:1\)"):
        load_jobs([tmp_path / "a.yaml", tmp_path / "b.yaml"])


def test_the_resolved_configuration_loads_to_an_equal_job(load, tmp_path: Path) -> None:
    (job,) = load(
        ONE
        + "name: full\n"
        + "adapter: {rank: 4, targets: [q_proj]}\n"
        + "rewards: [{name: judge, url: 'http://h', weight: 2.0}, {function: 'm:f'}]\n"
        + "algorithm: {name: dr-grpo, kl_coef: 0.04}\n"
        + "sampling: {stop: ['\\n', 'é']}\n"
        + "evaluation: {every: 5}\n"
        + "target_reward: 0.5\n"
        + "trackers: [wandb]\n"
    )
    elsewhere = tmp_path / "run" / "job.yaml"
    elsewhere.parent.mkdir()
    elsewhere.write_text(dump_resolved(job))
    assert load_jobs([elsewhere]) == (job,)


def test_the_resolved_configuration_shows_every_default(load) -> None:
    text = dump_resolved(load(ONE)[0])
    for key in ("learning_rate: 0.0001", "clip_high: 1.2", "max_tokens: 256", "keep_last: 2"):
        assert key in text


@pytest.mark.parametrize(
    "odd", ["\x85", "\u2028", "\u2029", "\ufeff", "\r", "\r\n", "\t", " ", "é"]
)
def test_odd_characters_survive_the_round_trip(load, odd: str) -> None:
    environment = {"name": "e", "system": f"a{odd}b"}
    job = JobSpec.model_validate({"name": "a", "environment": environment, "steps": 1})
    assert load(dump_resolved(job))[0].environment == job.environment


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    rate=st.floats(min_value=1e-300, max_value=1e300),
    target=st.floats(-1e6, 1e6),
    stop=st.lists(st.text(min_size=1, max_size=8), max_size=3),
    seed=st.integers(0, 2**63),
)
def test_any_values_survive_the_round_trip(tmp_path: Path, rate, target, stop, seed) -> None:
    job = JobSpec.model_validate(
        {
            "name": "a",
            "environment": {"name": "e"},
            "target_reward": target,
            "optimizer": {"learning_rate": rate},
            "sampling": {"stop": stop},
            "seed": seed,
            "base_dir": "/x",
        }
    )
    file = tmp_path / "r.yaml"
    file.write_text(dump_resolved(job), encoding="utf-8", newline="")
    assert load_jobs([file]) == (job,)


def test_targets_are_names_of_the_models_own_layers(load, tmp_path: Path) -> None:
    foreign_model(tmp_path / "neox", "gpt-neox")
    one = ONE + f"model: {tmp_path / 'neox'}\n"
    (job,) = load(one + "adapter: {targets: [dense]}\n")
    assert job.lora().targets == ("dense",)
    with pytest.raises(ConfigError, match="`q_proj` matches no linear layer"):
        load(one + "adapter: {targets: [q_proj]}\n")
    with pytest.raises(ConfigError, match="did you mean `query_key_value`"):
        load(one + "adapter: {targets: [query_keys]}\n")
    (tmp_path / "whole.yaml").write_text(dump_resolved(load(one)[0]))
    assert load_jobs([tmp_path / "whole.yaml"])[0].lora().targets == ALL_LINEAR


def test_targets_of_a_model_on_the_hub_are_checked_when_it_is_there(load) -> None:
    (job,) = load(ONE + "model: org/name\nadapter: {targets: [dense]}\n")
    assert job.lora().targets == ("dense",)
