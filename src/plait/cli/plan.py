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
from plait.jobs.plan import LENGTH_SHARE, TURN_SHARE, UNKNOWN_STEPS, Plan, make_plan
from plait.jobs.preflight import preflight
from plait.jobs.room import room_of
from plait.models.rates import measured_rates
from plait.models.registry import resolve
from plait.models.shape import read_shape
from plait.models.tokenizer import Tokenizer
from plait.runtime.settings import Settings


def plan_command(files: Sequence[Path], *, asked: Settings, as_json: bool) -> int:
    """Print what the jobs of ``files`` will need if ``plait run`` is asked for the same settings;
    what it refuses is refused here."""
    specs = load_jobs(files)
    model = one_model(specs)
    model_dir = resolve(model)
    shape = read_shape(model_dir, name=model)
    settings = asked.resolve(shape)
    tokenizer = Tokenizer(model_dir)

    async def estimate() -> Plan:
        async with open_sources(specs, tokenizer) as sources:
            await preflight(specs, sources, room=room_of(shape, settings), tokenizer=tokenizer)
            rates = await asyncio.to_thread(
                measured_rates,
                model_dir,
                settings.cores,
                worker_env(settings.cores),
                device=settings.device,
                dtype=settings.dtype,
            )
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
    print("\n".join(conclusions(plan)))


def conclusions(plan: Plan) -> list[str]:
    """What the table comes to: the cache, the time, and what both rest on."""
    used = sum(job.kv_blocks for job in plan.jobs)
    if plan.too_large:
        fits = f"not enough for {', '.join(plan.too_large)} alone, which will queue and be slow"
    elif len(plan.jobs) == 1:
        fits = "it fits"
    else:
        fits = "all fit at once" if used <= plan.kv_budget_blocks else "runs will take turns"
    lines = [f"cache: {used} of {plan.kv_budget_blocks} blocks at worst: {fits}"]
    if plan.too_large:
        lines.append(
            "  lower limits.max_tokens, limits.max_turns, samples or groups, or raise --kv-blocks"
        )
    m = plan.memory
    lines.append(
        f"memory: {m.total / 1e9:.2f} GB at most and the libraries: weights {m.weights / 1e9:.2f}, "
        f"packed copies {m.packed / 1e9:.2f}, cache {m.cache / 1e9:.2f}, micro-batches "
        f"{m.micro_batches / 1e9:.2f}, adapters {m.adapters / 1e9:.2f}"
    )
    alone_min, shared_min = plan.sequential_s / 60, plan.shared_s / 60
    if len(plan.jobs) == 1:
        lines.append(f"one job: {alone_min:.1f} min")
    else:
        advice = "sharing pays" if plan.pays else "sharing will not pay: run them one by one"
        lines.append(
            f"one after the other {alone_min:.1f} min, shared about {shared_min:.1f} min "
            f"({plan.speedup:.1f}×): {advice}"
        )
    if plan.by_transformers:
        lines.append("the model runs through transformers: plait has no forward of its own for it")
    lines.append(
        f"assumed: turns of {LENGTH_SHARE:.0%} of limits.max_tokens (all of it with ignore_eos), "
        f"{TURN_SHARE:.0%} of the further turns, {UNKNOWN_STEPS} steps where only a target is "
        "given; evaluations and the start of the workers are not included"
    )
    return lines
