"""plait.cli.plan: plans what plait run would run, refuses what that would, and tidies up."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from plait.cli import main
from plait.cli.plan import conclusions
from plait.jobs.memory import Memory, estimate
from plait.jobs.plan import JobPlan, Plan
from plait.models.registry import TINY_DIR, resolve
from plait.models.shape import read_shape
from plait.runtime.settings import LEAN_KV_MAX_BYTES, LEAN_TRAIN_BYTES, Settings

ENVIRONMENT = """
log = []

class Env:
    stop = ()
    async def start(self): return (5,) * 20
    async def step(self, tokens): raise NotImplementedError
    def columns(self): return {}
    def close(self): log.append("env")

class Source:
    name, same_prompt, max_turns = "counted", True, 3
    def __init__(self, config):
        if "said" in config:
            self.max_observation_tokens = config["said"]
    def make(self, index, split): return Env()
    async def aclose(self): log.append("source")

def factory(config, tokenizer, seed):
    return Source(config)
"""


def plan(
    capsys: pytest.CaptureFixture[str], folder: Path, *jobs: dict[str, Any], **flags: Any
) -> Any:
    (folder / "counted_env.py").write_text(ENVIRONMENT)
    base = {"steps": 2, "groups": 1, "samples": 2, "limits": {"max_tokens": 16}}
    file = folder / "jobs.yaml"
    file.write_text(yaml.safe_dump({"defaults": base, "jobs": list(jobs)}))
    with pytest.raises(SystemExit) as end:
        main.plan([file], **{"cores": 1, "kv_blocks": 256, **flags}, format=main.Format.JSON)
    said = capsys.readouterr()
    return json.loads(said.out) if end.value.code == 0 else said.err


def counted(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "environment": {"name": "counted_env:factory", **keys}}


def test_observations_count_and_everything_is_closed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = plan(capsys, tmp_path, counted("quiet"), counted("talks", said=160))
    quiet, talks = (job["kv_blocks"] for job in found["jobs"])
    assert talks - quiet == 2 * 160 // 4, "of two samples"
    import counted_env  # type: ignore[import-not-found]

    assert counted_env.log.count("source") == 2
    assert counted_env.log.count("env") == 2 * (1 + 4), "those that were looked at"


def test_several_models_are_refused_as_by_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = counted("a"), {**counted("b"), "model": "smollm2-135m"}
    assert "the jobs name several models" in plan(capsys, tmp_path, *jobs)


def test_a_job_without_room_is_refused_as_by_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = plan(capsys, tmp_path, {**counted("a"), "limits": {"max_tokens": 500}})
    assert said.startswith("error: job a: the prompt of problem 0 has 20 tokens")


def test_a_reward_that_cannot_be_loaded_is_refused_as_by_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = plan(capsys, tmp_path, {**counted("a"), "rewards": [{"function": "nowhere:f"}]})
    assert said.startswith("error: job a: reward nowhere:f cannot be loaded")


def test_a_head_that_is_trained_counts_by_its_own_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = {**counted("a"), "adapter": {"rank": 2, "targets": ["lm_head"]}}
    some = {**counted("b"), "adapter": {"rank": 2, "targets": ["q_proj", "o_proj"]}}
    both = {**counted("c"), "adapter": {"rank": 2, "targets": ["q_proj", "lm_head", "o_proj"]}}
    sizes = [job["adapter_bytes"] for job in plan(capsys, tmp_path, alone, some, both)["jobs"]]
    shape = read_shape(TINY_DIR)
    assert sizes[0] == 2 * (shape.hidden_size + shape.vocab_size) * 4 * 4
    assert sizes[2] == sizes[0] + sizes[1]


def test_turns_that_cannot_end_before_their_limit_are_that_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = {**counted("b"), "sampling": {"ignore_eos": True}}
    may_end, runs_on = plan(capsys, tmp_path, counted("a"), whole)["jobs"]
    assert runs_on["tokens"] == pytest.approx(may_end["tokens"] / 0.6)


def test_a_key_of_the_users_own_may_be_called_latency(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [counted(f"j{i}", latency_s=v) for i, v in enumerate(("slow", None, -3, 1))]
    *odd, one = plan(capsys, tmp_path, *jobs)["jobs"]
    assert [job["step_s"] == job["work_s"] for job in odd] == [True] * 3
    assert one["step_s"] > one["work_s"]


def test_flags_that_change_what_run_would_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = plan(capsys, tmp_path, counted("a"), kv_blocks=0)
    lean = plan(capsys, tmp_path, counted("a"), kv_blocks=0, lean=True)
    two = plan(capsys, tmp_path, counted("a"), kv_blocks=0, rollout_workers=2)
    assert lean["memory"]["cache"] <= LEAN_KV_MAX_BYTES < usual["memory"]["cache"]
    assert lean["memory"]["micro_batches"] <= LEAN_TRAIN_BYTES < usual["memory"]["micro_batches"]
    assert lean["memory"]["packed"] < usual["memory"]["packed"]
    assert two["memory"]["packed"] == 2 * usual["memory"]["packed"]
    trainers = plan(capsys, tmp_path, counted("a"), kv_blocks=0, training_workers=3)
    assert trainers["memory"]["micro_batches"] == 3 * usual["memory"]["micro_batches"]
    # Each worker has its part of the cache: a sample that needs more is refused, as by run.
    said = plan(capsys, tmp_path, counted("a"), kv_blocks=12, rollout_workers=2)
    assert "may need 36 tokens of cache and there are 24" in said


def test_the_memory_of_what_run_would_use() -> None:
    shape = read_shape(resolve("tiny"), name="tiny")
    settings = Settings(lean=True, rollout_workers=3).resolve(shape)
    memory = estimate(shape, settings, adapters=7)
    assert memory.cache == settings.kv_blocks * settings.block_size * shape.kv_bytes_per_token
    assert memory.packed == 3 * 4 * shape.vocab_size * shape.hidden_size
    assert memory.total == sum(
        (memory.weights, memory.packed, memory.cache, memory.micro_batches, 7)
    )


JOB = JobPlan(
    name="a",
    kv_blocks=60,
    adapter_bytes=0,
    steps=10,
    prompt_tokens=8,
    work_s=6.0,
    step_s=18.0,
    tokens=100.0,
    trained_tokens=100.0,
    samples=8,
)
PLAN = Plan(
    jobs=(JOB, replace(JOB, name="b")),
    kv_budget_blocks=100,
    block_bytes=1,
    memory=Memory(weights=10**9, packed=0, cache=10**8, micro_batches=10**8, adapters=0),
    sequential_s=360.0,
    shared_s=240.0,
)


def test_what_a_plan_comes_to() -> None:
    cache, memory, time, assumed = conclusions(PLAN)
    assert cache == "cache: 120 of 100 blocks at worst: runs will take turns"
    assert memory.startswith("memory: 1.20 GB at most and the libraries: weights 1.00, packed")
    assert time == "one after the other 6.0 min, shared about 4.0 min (1.5×): sharing pays"
    assert "60% of limits.max_tokens" in assumed
    assert "evaluations and the start of the workers are not included" in assumed
    assert conclusions(replace(PLAN, kv_budget_blocks=120))[0].endswith("all fit at once")
    assert conclusions(replace(PLAN, shared_s=360.0))[2].endswith("run them one by one")
    other = conclusions(replace(PLAN, by_transformers=True))
    assert any("through transformers" in line for line in other)


def test_a_job_too_large_for_the_whole_cache_is_told_what_to_lower() -> None:
    cache, hint, *_ = conclusions(replace(PLAN, jobs=(JOB, replace(JOB, name="b", kv_blocks=101))))
    assert cache.endswith("not enough for b alone, which will queue and be slow")
    assert hint.startswith("  lower limits.max_tokens,")
    assert hint.endswith("or raise --kv-blocks")


def test_one_job_is_not_advised_to_run_one_by_one() -> None:
    one = replace(PLAN, jobs=(JOB,), sequential_s=192.0, shared_s=192.0)
    cache, _, time, _ = conclusions(one)
    assert cache.endswith(": it fits")
    assert time == "one job: 3.2 min"
