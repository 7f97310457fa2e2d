"""A6: a cache of 40 % of the worst-case sum: admission against none, and where sharing loses.

Jobs with long outputs, so that admitting all at once preempts and recomputes. Repeats alternate.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.figure import RESULTS, Measured
from benchmarks.live.launches import Run, run, specs_of, spread
from plait.engines.factory import BLOCK_SIZE
from plait.jobs.spec import JobSpec
from plait.profiles.kv import worst_case_blocks

AT_LEAST = 1.2
BUDGET = 0.4
SHARES = (0.15, 1.0)
REPEATS = 2
GROUPS, SAMPLES, PROMPT = 2, 4, 68
TURN, RESULT = 32, 18
"""Tokens: two turns of fixed length with one search result between them."""
MAX_TOKENS = 2 * TURN + RESULT


def jobs(n: int) -> tuple[JobSpec, ...]:
    """``n`` jobs whose samples run to their limit."""
    rows = "\n".join(f"  - {{name: long-{i}, seed: {i}}}" for i in range(n))
    return specs_of(
        f"""
model: smollm2-135m
defaults:
  groups: {GROUPS}
  samples: {SAMPLES}
  steps: 2
  sampling: {{ignore_eos: true}}
  limits: {{max_tokens: {TURN}}}
  optimizer: {{learning_rate: 1.0e-5}}
  environment: {{name: search, examples: 0, fixed_calls: 1, result_tokens: [8, 8]}}
jobs:
{rows}
"""
    )


def budget_blocks(n: int, share: float) -> int:
    """Cache blocks: a share of what ``n`` jobs would hold at worst."""
    worst = worst_case_blocks(
        n_prompts=GROUPS,
        group_size=SAMPLES,
        prompt_tokens=PROMPT,
        max_new_tokens=MAX_TOKENS,
        block_size=BLOCK_SIZE,
    )
    return int(share * n * worst)


def measure() -> Measured:
    """Time without admission over time with it."""
    specs, blocks = jobs(4), budget_blocks(4, BUDGET)
    with_it: list[Run] = []
    without: list[Run] = []
    for _ in range(REPEATS):
        with_it.append(run(specs, "plait", kv_blocks=blocks))
        without.append(run(specs, "no-admission", kv_blocks=blocks))
    pairs = {
        share: (
            run(specs, "no-admission", kv_blocks=budget_blocks(4, share)),
            run(specs, "sequential", kv_blocks=budget_blocks(4, share)),
        )
        for share in SHARES
    }
    return judge(with_it, without, pairs)


def judge(
    with_it: Sequence[Run], without: Sequence[Run], pairs: Mapping[float, tuple[Run, Run]]
) -> Measured:
    """What the launches show; ``pairs``: shared without admission, and one at a time, by budget."""
    with_s, without_s = [r.wall_s for r in with_it], [r.wall_s for r in without]
    region = {
        str(share): {
            "shared_s": shared.wall_s,
            "sequential_s": alone.wall_s,
            "gain": alone.wall_s / shared.wall_s,
        }
        for share, (shared, alone) in pairs.items()
    }
    picture = _draw(region)
    value = median(without_s) / median(with_s)
    return Measured(
        value=value,
        ok=value >= AT_LEAST,
        spread=max(spread(with_s), spread(without_s)),
        detail={
            "with_s": with_s,
            "without_s": without_s,
            "rollout_tokens_with": [_rollout_tokens(r) for r in with_it],
            "rollout_tokens_without": [_rollout_tokens(r) for r in without],
            "picture": picture.name,
            "gain_of_sharing_without_admission_by_budget_share": region,
        },
    )


def _rollout_tokens(one: Run) -> int:
    """Tokens that the rollout engine computed, those computed again included."""
    return sum(s["tokens"] for s in one.launch.spans if s["kind"] == "rollout")


def _draw(region: dict[str, dict[str, float]]) -> Path:
    """Gain of sharing without admission over the cache's size; below 1 sharing loses."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    shares = [float(share) for share in region]
    axes.plot(shares, [row["gain"] for row in region.values()], marker="o")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(
        xscale="log",
        xlabel="cache as a share of the worst-case sum",
        ylabel="gain over one at a time",
        title="Sharing without admission: it loses below 1",
    )
    path = RESULTS / "A6.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
