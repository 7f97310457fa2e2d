"""``plait sim``: workloads and recorded launches on a virtual clock."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from plait.cli.console import show, show_json
from plait.cli.sim_sources import Source, open_source
from plait.core.errors import ConfigError
from plait.obs.records import plain
from plait.sim.costs.devices import ALIASES, DEVICES
from plait.sim.costs.models import MODELS
from plait.sim.decisions import check_launch
from plait.sim.named import alone, known, scheme
from plait.sim.outcome import Outcome
from plait.sim.report import case, make_place, to_json, to_text, write
from plait.sim.schemes import Scheme
from plait.sim.setting_file import check_setting
from plait.sim.simulate import simulate
from plait.sim.spec import Setting
from plait.sim.summary import Alone, alone_of
from plait.sim.sweep import read_axis, variations
from plait.sim.workloads.names import workloads

MOST_ALONE = 32
"""Jobs of a workload up to which each is simulated alone too, for the stretch: beyond, that would
take longer than the workload itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line says."""

    policies: tuple[str, ...] = ()
    sweep: tuple[str, ...] = ()
    out: Path | None = None
    as_json: bool = False
    seed: int | None = None
    fluid: bool = False
    price: float | None = None
    device: str | None = None
    """What a job file runs on; ``cpu`` unless given."""
    alone: tuple[Path, ...] = ()


def sim_command(file: str, asked: Asked) -> int:
    """Simulate and print; pictures and JSON too, if asked for."""
    source = open_source(file, device=asked.device, alone=asked.alone)
    schemes = [scheme(name) for name in asked.policies] or [source.scheme]
    axes = [read_axis(text) for text in asked.sweep]
    if asked.price is not None and not 0.0 <= asked.price < float("inf"):
        raise ConfigError(f"--price is {asked.price:g}: give what a device costs in an hour")
    if asked.out is not None:
        make_place(asked.out)
    settings = [
        (name, _seeded(setting, asked.seed)) for name, setting in variations(source.setting, axes)
    ]
    for _, setting in settings if axes else ():
        check_setting(setting)
    with_alone = [len(setting.jobs) <= MOST_ALONE for _, setting in settings]
    total = len(settings) * len(schemes)
    total += sum(len(s.jobs) for (_, s), wanted in zip(settings, with_alone, strict=True) if wanted)
    cases, references = [], _References(source, fluid=asked.fluid)
    with _progress() as progress:
        task = progress.add_task("simulating", total=total)
        for (name, setting), wanted in zip(settings, with_alone, strict=True):
            by_name: dict[str, Alone] = {}
            for i, job in enumerate(setting.jobs if wanted else ()):
                if (reference := references.of(setting, i)) is not None:
                    by_name[job.name] = reference
                progress.advance(task)
            for one in schemes:
                progress.update(task, description=", ".join(filter(None, (one.name, name))))
                outcome = _run(source, setting, one, fluid=asked.fluid, spans=asked.out is not None)
                cases.append(case(outcome, setting=name, alone=by_name, price=asked.price))
                progress.advance(task)
    files = write(cases, asked.out) if asked.out is not None else []
    if asked.as_json:
        show_json({"cases": to_json(cases), "live": source.live, "files": [str(f) for f in files]})
        return 0
    show(to_text(cases))
    if source.live is not None:
        print(source.live.line(cases[0].summary.makespan_s))
    for path in files:
        print(f"wrote {path}")
    return 0


def check_command(directory: Path, *, as_json: bool) -> int:
    """Decide again what a launch decided; 1 if a plan is not what it was."""
    checked = check_launch(directory)
    if as_json:
        show_json({**plain(checked), "same": checked.same})
        return 0 if checked.same else 1
    n = sum(checked.n_decisions.values())
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in checked.n_decisions.items())
    if checked.same:
        print(f"{n:,} decisions of {checked.policy} made again ({kinds}): all the same")
        return 0
    print(f"{checked.n_different:,} of {n:,} decisions of {checked.policy} are different now:")
    for one in checked.differences:
        print(f"  line {one.line} ({one.kind}, {one.t:.3f} s): {one.recorded} → {one.now}")
    return 1


def list_command(*, as_json: bool) -> int:
    """What can be named."""
    schemes, devices = known(), sorted([*DEVICES, *ALIASES])
    if as_json:
        found = {"policies": schemes, "devices": devices, "models": list(MODELS)}
        show_json({**found, "workloads": list(workloads())})
        return 0
    table = Table("policy", "what it does")
    for name, line in schemes.items():
        table.add_row(name, line)
    show(table)
    print(f"devices: {', '.join(devices)}")
    print(f"models: {', '.join(MODELS)}, or a Hugging Face config.json")
    print("workloads:")
    print("\n".join(f"  {name}" for name in workloads()))
    return 0


class _References:
    """Each job by itself on the same cluster, simulated once."""

    def __init__(self, source: Source, *, fluid: bool) -> None:
        self._source, self._fluid = source, fluid
        self._found: dict[str, Alone | None] = {}

    def of(self, setting: Setting, i: int) -> Alone | None:
        """The i-th job; ``None`` if it makes no step."""
        one = replace(setting, jobs=(replace(setting.jobs[i], arrival_s=0.0),))
        key = repr(one)
        if key not in self._found:
            outcome = _run(self._source, one, alone(), fluid=self._fluid, spans=False)
            self._found[key] = alone_of(outcome)
        return self._found[key]


def _run(source: Source, setting: Setting, one: Scheme, *, fluid: bool, spans: bool) -> Outcome:
    return simulate(
        setting,
        one,
        source.costs_of(setting),
        mode="fluid" if fluid else "exact",
        spans=spans,
        slowdown=source.slowdown,
    )


def _seeded(setting: Setting, seed: int | None) -> Setting:
    if seed is None:
        return setting
    return replace(setting, options={**setting.options, "seed": seed})


def _progress() -> Progress:
    """On standard error, where a terminal is; gone when it is done."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(file=sys.stderr),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
