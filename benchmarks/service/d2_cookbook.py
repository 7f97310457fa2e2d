"""D2: recipes of the cookbook, unmodified and offline, on SmolLM2; three at once as three tenants.

Each recipe runs as a person would start it, in the cookbook's environment. What it wrote to its
``metrics.jsonl`` says whether it went all its steps, and whether arithmetic's reward rose.
"""

import json
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.figure import Measured
from benchmarks.peers.environment import COOKBOOK
from benchmarks.service.clients import PROGRAMS, quiet_environment
from benchmarks.service.servers import Served, plait_serve
from benchmarks.service.tenants import new_tenant

LEARNING = {"max_steps": 20, "group_size": 8, "groups_per_batch": 8, "learning_rate": 3e-4}
SHORT = {"max_steps": 3, "group_size": 4, "groups_per_batch": 4}
MAX_TOKENS = 16
"""For a sum: the recipe's own 5 are fewer than three digits and the stop string need, of which this
model's tokenizer makes six tokens, so that no sample ever had a reward."""
REWARD = "env/all/reward/total"
RISE = 0.1
"""Mean reward of the last quarter of the steps over the first quarter's, at least."""
RECIPE_S = 900.0
MATH = "tinker_cookbook.recipes.math_rl.train"
GUESS = "tinker_cookbook.recipes.multiplayer_rl.guess_number.train"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One command line of the cookbook."""

    name: str
    module: str = MATH
    keys: Mapping[str, Any] = field(default_factory=dict)
    steps: int = SHORT["max_steps"]


RECIPES = (
    Recipe(name="sync", keys={"loss_fn": "importance_sampling"}),
    Recipe(name="async", keys={"loss_fn": "ppo", "max_steps_off_policy": 1}),
    Recipe(
        name="streaming",
        keys={
            "loss_fn": "importance_sampling",
            "stream_minibatch_config.groups_per_batch": 4,
            "stream_minibatch_config.num_minibatches": 2,
        },
    ),
    Recipe(name="substeps", keys={"loss_fn": "gspo", "num_substeps": 2}),
    Recipe(name="default_loss"),
    Recipe(name="guess_number", module=GUESS, steps=1),
)
LEARNS = Recipe(
    name="learns",
    keys={"loss_fn": "importance_sampling", **LEARNING},
    steps=int(LEARNING["max_steps"]),
)
AT_ONCE = ("sync", "async", "default_loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a recipe went."""

    name: str
    ok: bool
    rows: int
    rewards: tuple[float, ...]
    error: str = ""


def measure() -> Measured:
    """The share of recipes that went to their end, and whether the reward rose."""
    logs = Path(tempfile.mkdtemp(prefix="plait-bench-"))
    with plait_serve() as served:
        ran = [run_recipe(served, r, logs / r.name) for r in RECIPES]
        ran.append(run_sft(served, logs / "sft"))
        tenants = [new_tenant(served, f"tenant-{i}") for i in range(len(AT_ONCE))]
        with ThreadPoolExecutor(len(AT_ONCE)) as pool:
            recipes = [next(r for r in RECIPES if r.name == name) for name in AT_ONCE]
            together = pool.map(
                lambda pair: run_recipe(pair[0], pair[1], logs / f"together-{pair[1].name}"),
                zip(tenants, recipes, strict=True),
            )
            ran += together
        learns = run_recipe(served, LEARNS, logs / "learns")
    ran.append(learns)
    quarter = max(1, len(learns.rewards) // 4)
    first, last = mean(learns.rewards[:quarter] or [0]), mean(learns.rewards[-quarter:] or [0])
    share = sum(r.ok for r in ran) / len(ran)
    return Measured(
        value=share,
        ok=share == 1 and last >= first + RISE,
        detail={
            "rewards": learns.rewards,
            "first_quarter": first,
            "last_quarter": last,
            "failed": {r.name: r.error for r in ran if not r.ok},
            "recipes": len(ran),
        },
    )


def run_recipe(served: Served, recipe: Recipe, log: Path, python: Path | None = None) -> Ran:
    """Start it and wait for its end. ``python``: of an environment with the cookbook."""
    keys: dict[str, Any] = {
        "model_name": served.model_dir,
        "renderer_name": "role_colon",
        "log_path": log,
        "behavior_if_log_dir_exists": "delete",
        "eval_every": 0,
        "save_every": 2,
    }
    if recipe.module == MATH:
        keys |= {"env": "arithmetic", "base_url": served.url, "lora_rank": 8, **SHORT}
        keys["max_tokens"] = MAX_TOKENS
    else:
        keys |= {"batch_size": 2, "group_size": 2, "max_steps": recipe.steps, "max_tokens": 16}
    keys |= recipe.keys
    arguments = ["-m", recipe.module, *(f"{k}={v}" for k, v in keys.items())]
    return _ran(served, recipe.name, arguments, log, recipe.steps, python)


def run_sft(served: Served, log: Path, python: Path | None = None) -> Ran:
    """Supervised fine-tuning on a file of sums."""
    log.mkdir(parents=True)
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"What is {a} + {b}?"},
                {"role": "assistant", "content": str(a + b)},
            ]
        }
        for a in range(4)
        for b in range(4)
    ]
    file = log / "sums.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    steps = 4
    told = replace(served, model=served.model_dir).told(
        file=str(file), log=str(log / "run"), steps=steps
    )
    arguments = [str(PROGRAMS / "sft.py"), told]
    return _ran(served, "sft", arguments, log / "run", steps, python)


def _ran(
    served: Served,
    name: str,
    arguments: list[str],
    log: Path,
    steps: int,
    python: Path | None,
) -> Ran:
    done = subprocess.run(
        [python or COOKBOOK.python(), *arguments],
        env={
            **quiet_environment(),
            "TINKER_BASE_URL": served.url,
            "TINKER_API_KEY": served.key,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        },
        capture_output=True,
        text=True,
        timeout=RECIPE_S,
        check=False,
    )
    metrics = log / "metrics.jsonl"
    rows = [json.loads(t) for t in metrics.read_text().splitlines()] if metrics.exists() else []
    rewards = tuple(float(r[REWARD]) for r in rows if REWARD in r)
    enough = len(rows) >= steps
    error = "" if done.returncode == 0 and enough else f"{len(rows)} rows: {done.stderr[-800:]}"
    return Ran(name=name, ok=not error, rows=len(rows), rewards=rewards, error=error)
