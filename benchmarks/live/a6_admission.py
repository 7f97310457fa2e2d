"""A6: a cache of 40 % of the worst-case sum: admission against none, and where sharing loses.

Jobs with long outputs, so that admitting all at once preempts and recomputes. Repeats alternate.
"""

from pathlib import Path
from statistics import median

from benchmarks.figure import RESULTS, Measured
from benchmarks.live.launches import run, specs_of, spread
from plait.jobs.spec import JobSpec
from plait.profiles.kv import worst_case_blocks
from plait.runtime.settings import BLOCK_SIZE

AT_LEAST = 1.2
BUDGET = 0.4
SHARES = (0.15, 1.0)
REPEATS = 2
GROUPS, SAMPLES, MAX_TOKENS, PROMPT = 2, 4, 64, 64


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
  limits: {{max_tokens: {MAX_TOKENS}}}
  optimizer: {{learning_rate: 1.0e-5}}
  environment: {{name: reasoning-gym, dataset: simple_equations}}
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
    with_s, without_s = [], []
    for _ in range(REPEATS):
        with_s.append(run(specs, "plait", kv_blocks=blocks).wall_s)
        without_s.append(run(specs, "no-admission", kv_blocks=blocks).wall_s)
    region = {}
    for share in SHARES:
        shared = run(specs, "no-admission", kv_blocks=budget_blocks(4, share)).wall_s
        alone = run(specs, "sequential", kv_blocks=budget_blocks(4, share)).wall_s
        region[str(share)] = {"shared_s": shared, "sequential_s": alone, "gain": alone / shared}
    picture = _draw(region)
    value = median(without_s) / median(with_s)
    return Measured(
        value=value,
        ok=value >= AT_LEAST,
        spread=max(spread(with_s), spread(without_s)),
        detail={
            "with_s": with_s,
            "without_s": without_s,
            "blocks": blocks,
            "picture": picture.name,
            "gain_of_sharing_without_admission_by_budget_share": region,
        },
    )


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
