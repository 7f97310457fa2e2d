"""Arranged: a workload's jobs as a scheme makes them run, where it says so.

A published system may fix the pipeline, or whether rollout has devices apart from training's; then
every job that is placed is made to fit: the same devices, divided in the system's way. What a
scheme leaves open is the job's.

Left to others: which devices (``placer``).
"""

from dataclasses import replace

from plait.core.errors import ConfigError
from plait.sim.schemes import Scheme
from plait.sim.spec import JobSpec

STALENESS = 4
"""Of asynchronous pipelines where the job gives none: "up to several model update steps"
(JigsawRL §5.1 of AReaL)."""


def arranged(spec: JobSpec, scheme: Scheme) -> JobSpec:
    """The job under the scheme; ConfigError where it has too few devices to divide them."""
    if scheme.lora == "shared" and spec.weights == "lora":
        return spec
    if scheme.rollout == "together":
        n = spec.train_devices + spec.rollout_devices
        spec = replace(spec, train_devices=n, rollout_devices=0)
    elif scheme.rollout == "own" and not spec.rollout_devices:
        spec = _halves(spec, scheme)
    if scheme.pipeline is not None:
        ahead = {"sync": 0, "one-step": 1}.get(scheme.pipeline, spec.staleness or STALENESS)
        spec = replace(spec, pipeline=scheme.pipeline, staleness=ahead)
    return spec


def _halves(spec: JobSpec, scheme: Scheme) -> JobSpec:
    """Half of its devices for rollout, in whole copies of the model; the rest, if any, trains."""
    copies = spec.train_devices // spec.tensor_parallel
    if copies < 2:
        raise ConfigError(
            f"job {spec.name}: {scheme.name} wants devices for rollout apart from those for "
            f"training, and train_devices {spec.train_devices} cannot be divided: raise it, or "
            "give the job rollout_devices"
        )
    roll = copies // 2 * spec.tensor_parallel
    return replace(spec, rollout_devices=roll, train_devices=spec.train_devices - roll)
