"""``plait plan``: an estimate before anything runs."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from plait.cli.console import show, show_json
from plait.cli.prepare import one_model, open_sources
from plait.cluster.local import worker_env
from plait.jobs.load import load_jobs
from plait.jobs.plan import Plan, make_plan
from plait.models.rates import measured_rates
from plait.models.registry import resolve
from plait.models.shape import read_shape
from plait.models.tokenizer import Tokenizer
from plait.runtime.settings import Settings


def plan_command(files: Sequence[Path], *, cores: int, kv_blocks: int, as_json: bool) -> int:
    """Print what the jobs of ``files`` will need."""
    specs = load_jobs(files)
    model = one_model(specs)
    model_dir = resolve(model)
    shape = read_shape(model_dir, name=model)
    settings = Settings(cores=cores, kv_blocks=kv_blocks).resolve(shape)
    tokenizer = Tokenizer(model_dir)
    rates = measured_rates(model_dir, settings.cores, worker_env(settings.cores))

    async def estimate() -> Plan:
        async with open_sources(specs, tokenizer) as sources:
            return await make_plan(specs, sources, shape=shape, rates=rates, settings=settings)

    plan = asyncio.run(estimate())
    if as_json:
        show_json({**asdict(plan), "speedup": plan.speedup, "pays": plan.pays})
    else:
        _print(plan)
    return 0


def _print(plan: Plan) -> None:
    table = Table(
        "job", "steps", "prompt", "cache blocks", "adapter", "s/step alone", "total alone"
    )
    for job in plan.jobs:
        table.add_row(
            job.name,
            str(job.steps),
            str(job.prompt_tokens),
            f"{job.kv_blocks} ({job.kv_blocks * plan.block_bytes / 1e6:.0f} MB)",
            f"{job.adapter_bytes / 1e6:.0f} MB",
            f"{job.step_s:.1f}",
            f"{job.steps * job.step_s / 60:.1f} min",
        )
    show(table)
    used = sum(job.kv_blocks for job in plan.jobs)
    fits = "all fit at once" if used <= plan.kv_budget_blocks else "runs will take turns"
    print(f"cache: {used} of {plan.kv_budget_blocks} blocks at worst: {fits}")
    advice = "sharing pays" if plan.pays else "sharing will not pay: run them one by one"
    print(
        f"one after the other {plan.sequential_s / 60:.1f} min, shared about "
        f"{plan.shared_s / 60:.1f} min ({plan.speedup:.1f}×): {advice}"
    )
