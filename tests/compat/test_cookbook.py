"""Recipes of the cookbook, unmodified, at once as several tenants (figure D2 runs all of them for
longer, on SmolLM2). Skipped where there is no environment with the cookbook."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peers.environment import COOKBOOK
from benchmarks.service.d2_cookbook import RECIPES, Ran, run_recipe, run_sft
from benchmarks.service.servers import plait_serve
from benchmarks.service.tenants import new_tenant
from plait.models.cache import cache_root

pytestmark = pytest.mark.slow

PYTHON = cache_root() / "peers" / COOKBOOK.name / "bin" / "python"
"""Looked up before the tests have a cache of their own."""
STEPS = 2


@pytest.mark.skipif(not PYTHON.exists(), reason=f"there is no environment {COOKBOOK.name}")
@pytest.mark.timeout(600)
def test_recipes_at_once_as_three_tenants(tmp_path: Path) -> None:
    short = {"max_steps": STEPS, "group_size": 2, "groups_per_batch": 2}
    chosen = [
        replace(recipe, keys={**recipe.keys, **short}, steps=STEPS)
        for recipe in RECIPES
        if recipe.name in ("async", "default_loss")
    ]
    with plait_serve("tiny", cores=1) as served, ThreadPoolExecutor(3) as pool:
        tenants = [new_tenant(served, f"tenant-{i}") for i in range(3)]
        running = [
            pool.submit(run_recipe, tenant, recipe, tmp_path / recipe.name, PYTHON)
            for tenant, recipe in zip(tenants, chosen, strict=False)
        ]
        running.append(pool.submit(run_sft, tenants[2], tmp_path / "sft", PYTHON))
        ran: list[Ran] = [one.result() for one in running]
    assert [one.error for one in ran] == ["", "", ""]
    assert all(len(one.rewards) >= STEPS for one in ran[:2])
