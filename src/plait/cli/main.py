"""Entry point: verbs and their flags. Nothing heavy is imported until a verb runs.

Exit codes: 0 all well, 1 a job failed, 2 the request was wrong, 130 interrupted (resumable).
"""

from pathlib import Path
from typing import Annotated

import typer

from plait.cli import remote
from plait.cli.flags import (
    Cores,
    Deterministic,
    Device,
    Dtype,
    KvBlocks,
    Lean,
    Policy,
    Recompute,
    RolloutWorkers,
    StepLimit,
    TrainingWorkers,
)
from plait.cli.options import Format, FormatOption, told, typer_app

app = typer_app("Run many RL post-training jobs on the accelerators you already have.")


@app.command()
def run(
    files: Annotated[list[Path] | None, typer.Argument(help="Job files (YAML).")] = None,
    policy: Policy = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Launch directory; new or empty.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this launch directory.")] = None,
    cores: Cores = 0,
    kv_blocks: KvBlocks = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    cuda_graphs: Annotated[
        bool, typer.Option(help="On CUDA: record decode steps and replay them.")
    ] = True,
    deterministic: Deterministic = False,
    elastic: Annotated[
        bool, typer.Option(help="Workers lend each other the cores that they do not use.")
    ] = True,
    rollout_workers: RolloutWorkers = 0,
    training_workers: TrainingWorkers = 0,
    step_limit: StepLimit = 0.0,
    lean: Lean = False,
    recompute: Recompute = False,
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the policy, KEY=VALUE; may be repeated.")
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Train the jobs of one or many files, all at once."""
    with told(again=f"plait run --resume {resume}" if resume else ""):
        from plait.cli.run import run_command
        from plait.runtime.settings import Settings

        asked = Settings(
            cores=cores,
            kv_blocks=kv_blocks,
            device=device,
            dtype=dtype,
            cuda_graphs=cuda_graphs,
            deterministic=deterministic,
            elastic=elastic,
            step_limit_s=step_limit,
            lean=lean,
            rollout_workers=rollout_workers,
            training_workers=training_workers,
            recompute=recompute,
        )
        code = run_command(
            files or [],
            policy=policy,
            directory=directory,
            resume=resume,
            asked=asked,
            options=option or [],
            as_json=format is Format.JSON,
        )
        raise SystemExit(code)


@app.command()
def demo(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where the two launches go; new or empty.")
    ] = None,
    cores: Cores = 0,
    format: FormatOption = Format.TABLE,
) -> None:
    """Three jobs on the built-in tiny model: shared, then one after the other."""
    with told():
        from plait.cli.demo import demo_command

        raise SystemExit(demo_command(directory, cores=cores, as_json=format is Format.JSON))


@app.command()
def plan(
    files: Annotated[list[Path], typer.Argument(help="Job files (YAML).")],
    cores: Cores = 0,
    kv_blocks: KvBlocks = 0,
    rollout_workers: RolloutWorkers = 0,
    training_workers: TrainingWorkers = 0,
    lean: Lean = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    format: FormatOption = Format.TABLE,
) -> None:
    """What the jobs will need: cache, memory, expected time, and whether sharing will pay."""
    with told():
        from plait.cli.plan import plan_command
        from plait.runtime.settings import Settings

        asked = Settings(
            cores=cores,
            kv_blocks=kv_blocks,
            rollout_workers=rollout_workers,
            training_workers=training_workers,
            lean=lean,
            device=device,
            dtype=dtype,
        )
        raise SystemExit(plan_command(files, asked=asked, as_json=format is Format.JSON))


@app.command()
def profile(
    model: Annotated[str, typer.Argument(help="A base model, as in a job file.")],
    out: Annotated[
        Path | None, typer.Option(help="Directory of the two files; default: in the cache.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few sizes, short windows.")] = False,
    cores: Cores = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    format: FormatOption = Format.TABLE,
) -> None:
    """Measure a model on this machine: times alone, and slowdowns side by side."""
    with told():
        from plait.cli.profile import profile_command
        from plait.runtime.settings import Settings

        asked = Settings(cores=cores, device=device, dtype=dtype)
        raise SystemExit(
            profile_command(model, asked=asked, out=out, quick=quick, as_json=format is Format.JSON)
        )


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="A launch directory.")],
    alone: Annotated[
        Path | None, typer.Option(help="A launch of the same jobs run alone, for the stretch.")
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Figures of a launch as a table, and a picture of its timeline."""
    with told():
        from plait.cli.report import report_command

        raise SystemExit(report_command(directory, alone=alone, as_json=format is Format.JSON))


@app.command()
def sim(
    file: Annotated[
        str | None,
        typer.Argument(
            help="A workload (YAML), a job file, a launch directory, or a paper's workload.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Schemes, separated by commas.", show_default=False)
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(help="Vary something: jobs=1,2,4,8 or devices=8,16; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write report.json and a picture of each case here.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of all draws; default 0.", show_default=False)
    ] = None,
    fluid: Annotated[
        bool, typer.Option("--fluid", help="Faster, within a few percent: for long rollouts.")
    ] = False,
    price: Annotated[
        float | None, typer.Option(help="Of a device-hour, for the cost.", show_default=False)
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="What a job file is to run on; default cpu.", show_default=False),
    ] = None,
    alone: Annotated[
        list[Path] | None,
        typer.Option(help="A launch of the same jobs one at a time, to predict from."),
    ] = None,
    check: Annotated[
        Path | None, typer.Option(help="Make a launch's decisions again and compare them.")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Policies, devices, models and workloads by name.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Simulate workloads under policies; check or vary a recorded launch."""
    with told():
        from plait.cli.sim import Asked, check_command, list_command, sim_command
        from plait.core.errors import ConfigError

        as_json = format is Format.JSON
        if list_:
            raise SystemExit(list_command(as_json=as_json))
        if check is not None:
            if file is not None:
                raise ConfigError(f"--check {check} and {file}: ask for one at a time")
            raise SystemExit(check_command(check, as_json=as_json))
        if file is None:
            raise ConfigError("nothing to simulate: give a file, or see plait sim --list")
        asked = Asked(
            policies=tuple(name.strip() for name in policy.split(",")) if policy else (),
            sweep=tuple(sweep or ()),
            out=out,
            as_json=as_json,
            seed=seed,
            fluid=fluid,
            price=price,
            device=device,
            alone=tuple(alone or ()),
        )
        raise SystemExit(sim_command(file, asked))


@app.command()
def serve(
    directory: Annotated[
        Path, typer.Option("--dir", help="State directory; made if it is not there.")
    ] = Path("plait-service"),
    model: Annotated[
        list[str] | None,
        typer.Option(help="A base model to serve; may be repeated. Default: tiny."),
    ] = None,
    bind: Annotated[
        str, typer.Option(help="HOST:PORT; beyond loopback only once there are keys.")
    ] = "127.0.0.1:8787",
    database: Annotated[
        str | None,
        typer.Option(help="URL of a PostgreSQL database; default: a file in --dir."),
    ] = None,
    policy: Policy = None,
    cores: Cores = 0,
    kv_blocks: KvBlocks = 0,
    rollout_workers: RolloutWorkers = 0,
    training_workers: TrainingWorkers = 0,
    step_limit: StepLimit = 0.0,
    lean: Lean = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    deterministic: Deterministic = False,
    recompute: Recompute = False,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Jobs may bring code, run in a sandbox.")
    ] = False,
    engine: Annotated[str, typer.Option(hidden=True)] = "torch",
) -> None:
    """Serve training and sampling over HTTP: Tinker API, jobs, OpenAI API."""
    with told():
        from plait.cli.serve import serve_command
        from plait.runtime.settings import Settings

        asked = Settings(
            engine=engine,
            cores=cores,
            kv_blocks=kv_blocks,
            rollout_workers=rollout_workers,
            training_workers=training_workers,
            step_limit_s=step_limit,
            lean=lean,
            device=device,
            dtype=dtype,
            deterministic=deterministic,
            recompute=recompute,
        )
        raise SystemExit(
            serve_command(
                directory,
                model or [],
                bind=bind,
                database=database,
                policy=policy,
                asked=asked,
                allow_code=allow_code,
            )
        )


@app.command()
def models(format: FormatOption = Format.TABLE) -> None:
    """Base models that can be named."""
    with told():
        from plait.cli.lists import models_command

        raise SystemExit(models_command(as_json=format is Format.JSON))


@app.command()
def envs(format: FormatOption = Format.TABLE) -> None:
    """Environments that can be named, with their keys."""
    with told():
        from plait.cli.lists import envs_command

        raise SystemExit(envs_command(as_json=format is Format.JSON))


remote.register(app)
