"""plait: run many RL post-training jobs on the accelerators you already have.

``async with plait.open("runs/mine", model="tiny") as p:`` starts the workers;
``p.create_run(name)`` gives a run with the seven operations (sample, forward, forward_backward,
optim_step, publish, save, load), ``p.add_job(spec)`` a job that drives itself.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from plait.core.operations import AdamParams, Datum, SamplingParams
    from plait.core.runs import LoraSpec
    from plait.jobs.launch import Launch
    from plait.policies.protocol import Sharing

__version__ = "0.1.0"
__all__ = ["AdamParams", "Datum", "LoraSpec", "SamplingParams", "open"]

_FROM = {
    "AdamParams": "plait.core.operations",
    "Datum": "plait.core.operations",
    "LoraSpec": "plait.core.runs",
    "SamplingParams": "plait.core.operations",
}


def __getattr__(name: str) -> Any:
    # On first use: making these classes takes 60 ms, which every ``plait … --help`` would wait.
    if name not in _FROM:
        raise AttributeError(f"module 'plait' has no attribute '{name}'")
    return getattr(import_module(_FROM[name]), name)


def open(
    directory: "str | Path",
    *,
    model: str = "tiny",
    policy: "str | Sharing" = "plait",
    **settings: Any,
) -> "Launch":
    """A launch in ``directory`` (taken up where it was, if it exists); use as ``async with``.

    ``policy``: a name, or what ``plait.policies.registry.make`` made of a name and options.
    ``settings``: fields of ``plait.runtime.settings.Settings`` (``cores``, ``kv_blocks`` …).
    """
    from plait.jobs.launch import Launch
    from plait.runtime.settings import Settings

    return Launch(directory, model=model, policy=policy, settings=Settings(**settings))
