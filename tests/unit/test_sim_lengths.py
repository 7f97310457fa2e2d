from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from plait.core.errors import ConfigError
from plait.sim.lengths import check_lengths, draw_step, longest_sample, mean_tokens, most_tokens
from plait.sim.spec import JobSpec, Lengths, Tool

LOGNORMAL = Lengths(kind="lognormal", median=600.0, sigma=0.6)
JOB = JobSpec(name="a", model="qwen3-4b", groups=500, samples=4, response=LOGNORMAL)
AGENT = replace(
    JOB,
    turns=(0.5, 0.3, 0.1, 0.1),
    tool=Tool(latency_s=2.0, jitter=0.5, result=Lengths(kind="uniform", least=100, most=300)),
)

GOLDEN = [[541], [582], [300], [429]]


def logs(job: JobSpec, step: int = 0, **other: Any) -> Any:
    drawn = draw_step(job, step, **other).responses
    return np.log([row[0] for row in drawn]).reshape(job.groups, job.samples)


def test_the_same_place_gets_the_same_draw_whoever_else_is_there() -> None:
    few, many = draw_step(replace(AGENT, groups=3), 7, 5), draw_step(AGENT, 7, 5)
    assert many.responses[:12] == few.responses
    assert many.waits_s[:12] == few.waits_s
    assert many.results[:12] == few.results
    assert many.prompts[:3] == few.prompts


def test_draws_are_those_of_the_first_day() -> None:
    """Results would change silently with another stream."""
    drawn = draw_step(replace(AGENT, groups=1), 7, 5)
    assert drawn == draw_step(replace(AGENT, groups=1), 7, 5)
    assert [list(turns) for turns in drawn.responses] == GOLDEN


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"step": 1}, {"job": replace(JOB, seed=1)}, {"job": replace(JOB, name="b")}],
)
def test_seed_step_and_job_each_give_other_draws(other: dict[str, Any]) -> None:
    given = {"job": JOB, "step": 0, "seed": 0, **other}
    assert draw_step(given["job"], given["step"], given["seed"]) != draw_step(JOB, 0, 0)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_lengths_are_distributed_as_asked_and_correlated_within_a_group(correlation: float) -> None:
    x = logs(JOB, correlation=correlation)
    assert x.mean() == pytest.approx(np.log(600), abs=0.06)
    assert x.std() == pytest.approx(0.6, abs=0.04)
    between = np.corrcoef(x[:, 0], x[:, 1])[0, 1]
    assert between == pytest.approx(correlation, abs=0.1)


def test_long_problems_have_more_turns() -> None:
    drawn = draw_step(AGENT, 0).responses
    first = np.array([row[0] for row in drawn])
    turns = np.array([len(row) for row in drawn])
    assert first[turns >= 3].mean() > 1.15 * first[turns == 1].mean()
    for k, share in enumerate(AGENT.turns, start=1):
        assert (turns == k).mean() == pytest.approx(share, abs=0.04)


def test_waits_and_results_lie_between_turns() -> None:
    drawn = draw_step(AGENT, 0)
    for turns, waits_s, results in zip(drawn.responses, drawn.waits_s, drawn.results, strict=True):
        assert len(waits_s) == len(results) == len(turns) - 1
        assert all(1.0 <= wait_s <= 3.0 for wait_s in waits_s)
        assert all(100 <= tokens <= 300 for tokens in results)
    sample = max(range(drawn.n_samples), key=lambda i: len(drawn.responses[i]))
    own = sum(drawn.responses[sample]) + sum(drawn.results[sample])
    assert drawn.tokens(sample, 4) == drawn.prompts[sample // 4] + own
    assert drawn.total_tokens(4) == sum(drawn.tokens(i, 4) for i in range(drawn.n_samples))


def test_drift_moves_all_lengths_step_by_step() -> None:
    job = replace(JOB, response=replace(LOGNORMAL, drift=0.01, most=10**6))
    assert logs(job, 50).mean() - logs(job, 0).mean() == pytest.approx(50 * np.log(1.01), abs=0.1)
    ever = replace(JOB, groups=1, response=replace(LOGNORMAL, drift=0.5))
    assert {row[0] for row in draw_step(ever, 10**6).responses} == {8192}


def test_limits_hold() -> None:
    job = replace(JOB, response=replace(LOGNORMAL, least=400, most=800))
    drawn = [row[0] for row in draw_step(job, 0).responses]
    assert (min(drawn), max(drawn)) == (400, 800)


def test_each_kind_has_its_mean() -> None:
    empirical = Lengths(kind="empirical", values=(10, 20, 90))
    uniform = Lengths(kind="uniform", least=100, most=300)
    assert mean_tokens(Lengths(kind="fixed", median=7.0)) == 7.0
    assert mean_tokens(uniform) == pytest.approx(200.0)
    assert mean_tokens(empirical) == pytest.approx(40.0, rel=0.01)
    assert mean_tokens(replace(LOGNORMAL, most=10**9)) == pytest.approx(
        600 * np.exp(0.18), rel=0.01
    )
    for kind in (empirical, uniform):
        drawn = [row[0] for row in draw_step(replace(JOB, response=kind), 0).responses]
        assert np.mean(drawn) == pytest.approx(mean_tokens(kind), rel=0.08)
    drawn = [row[0] for row in draw_step(replace(JOB, response=empirical), 0).responses]
    assert set(drawn) == {10, 20, 90}


def test_a_limit_cuts_the_last_turn_and_what_would_follow() -> None:
    free, cut = draw_step(AGENT, 0), draw_step(replace(AGENT, limit=1500), 0)
    for i in range(free.n_samples):
        whole = sum(free.responses[i]) + sum(free.results[i])
        mine = sum(cut.responses[i]) + sum(cut.results[i])
        k = len(cut.responses[i])
        assert mine == whole if whole <= 1500 else 1200 < mine <= 1500
        assert cut.responses[i][: k - 1] == free.responses[i][: k - 1]
        assert len(cut.waits_s[i]) == len(cut.results[i]) == k - 1
    assert max(map(len, cut.responses)) > 1
    single = draw_step(replace(JOB, limit=500), 0)
    assert max(row[0] for row in single.responses) == 500
    assert longest_sample(replace(AGENT, limit=1500)) == 256 + 1500


def test_the_longest_sample_is_never_passed() -> None:
    assert most_tokens(Lengths(kind="fixed", median=7.0)) == 7
    assert most_tokens(Lengths(kind="fixed", median=7.0, drift=0.1)) == 8192
    assert most_tokens(Lengths(kind="empirical", values=(5, 9))) == 9
    job = replace(AGENT, response=replace(LOGNORMAL, most=700))
    drawn = draw_step(job, 0)
    longest = max(drawn.tokens(i, 4) for i in range(drawn.n_samples))
    assert longest <= longest_sample(job) == 256 + 4 * 700 + 3 * 300


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (Lengths(kind="fixed", least=5, most=4), "job.response: least 5 … most 4 is empty"),
        (Lengths(kind="fixed", median=-1.0), "median is -1.0: give 0 or more"),
        (Lengths(kind="lognormal", sigma=float("nan")), "sigma is nan"),
        (Lengths(kind="fixed", drift=-1.0), "drift is -1.0: give a change per step"),
        (Lengths(kind="empirical"), "empirical: give values"),
        (Lengths(kind="empirical", values=(1, -2)), "none of them negative"),
        (Lengths(kind="pareto"), "choose fixed, lognormal"),  # type: ignore[arg-type]
    ],
)
def test_bad_lengths_are_named(lengths: Lengths, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_lengths("job.response", lengths)


def test_a_correlation_lies_between_none_and_one() -> None:
    with pytest.raises(ConfigError, match="give 0 to 1"):
        draw_step(JOB, 0, correlation=1.5)
