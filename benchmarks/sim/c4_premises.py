"""Premises: what PlexRL and JigsawRL take for granted, measured on jobs of this machine run alone.

Inter-step consistency (JigsawRL, Fig. 6) and how far idle gaps of different jobs can be kept apart
(PlexRL), by the measures of ``plait.obs.premises``. The jobs are those of ``plait demo``: short
answers by rule, and two that wait for slow tools.
"""

from typing import Any

from benchmarks.live.launches import run, specs_of
from plait.obs.premises import premises
from plait.profiles.premises import Opposition

ENVIRONMENTS = {
    "sum": "{name: tiny-sum}",
    "sort": "{name: tiny-sort, latency_s: 0.5}",
    "lookup": "{name: tiny-lookup, latency_s: 0.5}",
}


def live(steps: int) -> dict[str, Any]:
    """Launch each job alone, then compare steps of one and gaps of two."""
    folders = []
    for name, environment in ENVIRONMENTS.items():
        specs = specs_of(_text(name, environment, steps))
        folders.append(run(specs, "plait").launch.root)
    found = premises(folders)
    return {
        "jobs": {
            job.name: {
                "steps": job.n_steps,
                "busy": job.busy,
                "area between neighbouring steps": job.consistency and job.consistency.area,
                "worst area": job.consistency and job.consistency.worst_area,
                "correlation": job.consistency and job.consistency.correlation,
            }
            for job in found.jobs
        },
        "pairs": {f"{a} + {b}": _told(gaps) for a, b, gaps in found.pairs},
    }


def _told(gaps: Opposition) -> dict[str, float]:
    return {
        "both busy at a random phase": gaps.random,
        "at the best": gaps.best,
        "at the worst": gaps.worst,
        "at least": gaps.bound,
        "avoided": gaps.avoided,
        "correlation at the best": gaps.best_correlation,
    }


def _text(name: str, environment: str, steps: int) -> str:
    return f"""
model: tiny
groups: 8
samples: 8
steps: {steps}
limits: {{max_tokens: 12}}
optimizer: {{learning_rate: 2.0e-3}}
name: {name}
environment: {environment}
"""
