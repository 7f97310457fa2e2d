"""Names: the papers' workloads as ``plait sim NAME`` selects them.

``marlaas/amc12``, ``jigsawrl/fig-12/qwen3-4b/gsm8k``: paper, figure or table, cell.
"""

from collections.abc import Callable
from functools import partial

from plait.sim.costs.names import pick
from plait.sim.spec import Setting
from plait.sim.workloads import cluster, jigsawrl, marlaas, plexrl

JIGSAWRL = {
    "table-1": jigsawrl.table_1,
    "fig-12": jigsawrl.fig_12,
    "fig-13": jigsawrl.fig_13,
    "fig-16": jigsawrl.fig_16,
    "fig-17": jigsawrl.fig_17,
    "fig-18": jigsawrl.fig_18,
    "fig-20": jigsawrl.fig_20,
}
"""Each a table of settings."""

PLEXRL_JOBS = (2, 3, 4)
"""On one training pool (Fig. 7b)."""


def workloads() -> dict[str, Callable[[], Setting]]:
    """Every workload by its name."""
    found: dict[str, Callable[[], Setting]] = {"marlaas/mixed": marlaas.mixed}
    found["marlaas/amc12"] = marlaas.table_4
    for model in marlaas.DEPLOYMENTS:
        found[f"marlaas/search/{model}"] = partial(marlaas.replicas, model, "wiki-search", 10)
    for where, table in JIGSAWRL.items():
        for cell, setting in table().items():
            name = f"jigsawrl/{where}/{cell}".lower().replace(" ", "-")
            found[name] = partial(_itself, setting)
    for size in plexrl.SIZES:
        for k in PLEXRL_JOBS:
            found[f"plexrl/{size}/{k}-jobs"] = partial(plexrl.shared_pool, size, k)
    found["cluster/two-weeks"] = cluster.trace
    return found


def workload(name: str) -> Setting:
    """The workload called ``name``; ConfigError with the nearest known one."""
    return pick("workload", name, workloads())()


def _itself(setting: Setting) -> Setting:
    return setting
