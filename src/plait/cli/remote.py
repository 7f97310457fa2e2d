"""Remote: the verbs that ask a server (``plait serve``) over HTTP; ``client`` carries them out."""

from pathlib import Path
from typing import Annotated

import typer

from plait.cli.options import Format, FormatOption, told, typer_app

Job = Annotated[str, typer.Argument(help="A job's id, or its name where no other has it.")]
Limit = Annotated[int, typer.Option(help="At most so many, the newest first.", min=1, max=1000)]

keys = typer_app("API keys: list them, make one, revoke one.", alone=False)
tenants = typer_app("Tenants (for operators): list them, add one, change one.", alone=False)


def login(
    url: Annotated[str, typer.Argument(help="Of the server, such as http://127.0.0.1:8787.")],
    format: FormatOption = Format.TABLE,
) -> None:
    """Remember a server and a key; the key is asked for, or read from standard input."""
    with told():
        from plait.cli.client.login import login_command

        raise SystemExit(login_command(url, as_json=format is Format.JSON))


def submit(
    files: Annotated[list[Path], typer.Argument(help="Job files (YAML).")],
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="A file that the jobs name (data, or code), sent along; may be repeated."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show the first job's log.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Hand job files to the server."""
    with told(again="plait logs -f JOB"):
        from uuid import uuid4

        from plait.cli.client.jobs import submit_command

        as_json, nonce = format is Format.JSON, uuid4().hex
        raise SystemExit(
            submit_command(files, data=data or (), follow=follow, as_json=as_json, nonce=nonce)
        )


def jobs(
    job: Annotated[str | None, typer.Argument(help="Only this one, in full.")] = None,
    status: Annotated[
        str | None, typer.Option(help="queued, running, paused, done, failed or cancelled.")
    ] = None,
    limit: Limit = 50,
    format: FormatOption = Format.TABLE,
) -> None:
    """Your jobs and how far they are."""
    with told():
        from plait.cli.client.jobs import jobs_command

        as_json = format is Format.JSON
        raise SystemExit(jobs_command(job, status=status, limit=limit, as_json=as_json))


def logs(
    job: Job,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the job ends.")] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """What a job has said."""
    with told(again=f"plait logs -f {job}"):
        from plait.cli.client.logs import logs_command

        raise SystemExit(logs_command(job, follow=follow, as_json=format is Format.JSON))


def why(
    run: Annotated[str, typer.Argument(help="A run or job: its id, or its name.")],
    format: FormatOption = Format.TABLE,
) -> None:
    """What a run waits for, and where it stands."""
    with told():
        from plait.cli.client.jobs import why_command

        raise SystemExit(why_command(run, as_json=format is Format.JSON))


def cancel(job: Job, format: FormatOption = Format.TABLE) -> None:
    """End a job; its checkpoints stay."""
    with told():
        from plait.cli.client.jobs import change_command

        raise SystemExit(change_command(job, "cancel", as_json=format is Format.JSON))


def pause(job: Job, format: FormatOption = Format.TABLE) -> None:
    """Let a job rest at its last committed step."""
    with told():
        from plait.cli.client.jobs import change_command

        raise SystemExit(change_command(job, "pause", as_json=format is Format.JSON))


def resume(job: Job, format: FormatOption = Format.TABLE) -> None:
    """Let a paused job go on, or one that failed, from its last committed step."""
    with told():
        from plait.cli.client.jobs import change_command

        raise SystemExit(change_command(job, "resume", as_json=format is Format.JSON))


def checkpoints(
    run: Annotated[str | None, typer.Argument(help="Only of this run.")] = None,
    pin: Annotated[
        list[str] | None, typer.Option(help="Keep this tinker:// path, whatever comes.")
    ] = None,
    unpin: Annotated[
        list[str] | None, typer.Option(help="Let this tinker:// path expire or be deleted again.")
    ] = None,
    delete: Annotated[
        list[str] | None, typer.Option(help="Delete this tinker:// path; may be repeated.")
    ] = None,
    limit: Limit = 50,
    format: FormatOption = Format.TABLE,
) -> None:
    """Your checkpoints, their sizes, when they expire, which are pinned."""
    with told():
        from plait.cli.client.checkpoints import checkpoints_command

        raise SystemExit(
            checkpoints_command(
                run,
                pin=pin or (),
                unpin=unpin or (),
                delete=delete or (),
                limit=limit,
                as_json=format is Format.JSON,
            )
        )


def download(
    what: Annotated[str, typer.Argument(help="A tinker:// path, or a job for all its files.")],
    out: Annotated[Path | None, typer.Option(help="A new directory; default: its name.")] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Fetch a checkpoint, or the files of a job."""
    with told():
        from plait.cli.client.download import download_command

        raise SystemExit(download_command(what, out=out, as_json=format is Format.JSON))


def quota(format: FormatOption = Format.TABLE) -> None:
    """What you may use, and how much of it you do."""
    with told():
        from plait.cli.client.account import quota_command

        raise SystemExit(quota_command(as_json=format is Format.JSON))


def usage(
    by: Annotated[str, typer.Option(help="run or day.")] = "run",
    tenant: Annotated[
        str | None, typer.Option(help="Whose (operators only); default: yours.")
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """What you have used."""
    with told():
        from plait.cli.client.account import usage_command

        raise SystemExit(usage_command(by=by, tenant=tenant, as_json=format is Format.JSON))


@keys.callback()
def list_keys(
    context: typer.Context,
    tenant: Annotated[
        str | None, typer.Option(help="Whose (operators only); default: yours.")
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    verb = context.invoked_subcommand
    if verb is not None:
        if tenant is not None:  # or ``add`` would make a key of another tenant than was asked for
            raise typer.BadParameter(f"give it behind {verb}", param_hint="--tenant")
        return
    with told():
        from plait.cli.client.keys import keys_command

        raise SystemExit(keys_command(tenant=tenant, as_json=format is Format.JSON))


@keys.command("add")
def add_key(
    label: Annotated[str, typer.Argument(help="What it is for.")],
    tenant: Annotated[
        str | None, typer.Option(help="Whose (operators only); default: yours.")
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="May manage tenants and keys.")] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Make a key; it is shown this once."""
    with told():
        from plait.cli.client.keys import add_key_command

        as_json = format is Format.JSON
        raise SystemExit(add_key_command(label, tenant=tenant, admin=admin, as_json=as_json))


@keys.command("revoke")
def revoke_key(
    key: Annotated[str, typer.Argument(help="Its id, as plait keys lists it.")],
    format: FormatOption = Format.TABLE,
) -> None:
    """Refuse a key from now on."""
    with told():
        from plait.cli.client.keys import revoke_key_command

        raise SystemExit(revoke_key_command(key, as_json=format is Format.JSON))


@keys.command("rotate")
def rotate_key(
    key: Annotated[str, typer.Argument(help="Its id, as plait keys lists it.")],
    grace: Annotated[float, typer.Option(help="Seconds that the old one stays good.", min=0)] = 0,
    format: FormatOption = Format.TABLE,
) -> None:
    """Put a new key in the place of one; the new one is shown this once."""
    with told():
        from plait.cli.client.keys import rotate_key_command

        raise SystemExit(rotate_key_command(key, grace_s=grace, as_json=format is Format.JSON))


@tenants.callback()
def list_tenants(context: typer.Context, format: FormatOption = Format.TABLE) -> None:
    if context.invoked_subcommand is not None:
        return
    with told():
        from plait.cli.client.tenants import tenants_command

        raise SystemExit(tenants_command(as_json=format is Format.JSON))


Weight = Annotated[
    float | None, typer.Option(help="Of its share of the machine.", show_default=False)
]
Priority = Annotated[int | None, typer.Option(help="Higher ones go first.", show_default=False)]
LimitPairs = Annotated[
    list[str] | None, typer.Option("--limit", help="NAME=NUMBER or NAME=none; may be repeated.")
]


@tenants.command("add")
def add_tenant(
    name: Annotated[str, typer.Argument(help="Of the tenant.")],
    weight: Weight = None,
    priority: Priority = None,
    limit: LimitPairs = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Add a tenant; give it a key with plait keys add --tenant."""
    with told():
        from plait.cli.client.tenants import add_tenant_command

        raise SystemExit(
            add_tenant_command(
                name,
                weight=weight,
                priority=priority,
                limits=limit or (),
                as_json=format is Format.JSON,
            )
        )


@tenants.command("set")
def set_tenant(
    tenant: Annotated[str, typer.Argument(help="Its id, as plait tenants lists it.")],
    weight: Weight = None,
    priority: Priority = None,
    limit: LimitPairs = None,
    disabled: Annotated[
        bool | None, typer.Option("--disable/--enable", help="Refuse its keys, or not.")
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Change a tenant's share, limits, or whether it may come in."""
    with told():
        from plait.cli.client.tenants import set_tenant_command

        raise SystemExit(
            set_tenant_command(
                tenant,
                weight=weight,
                priority=priority,
                limits=limit or (),
                disabled=disabled,
                as_json=format is Format.JSON,
            )
        )


VERBS = (
    login, submit, jobs, logs, why, cancel, pause, resume, checkpoints, download, quota, usage,
)  # fmt: skip


def register(app: typer.Typer) -> None:
    """Give the command these verbs."""
    for verb in VERBS:
        app.command()(verb)
    app.add_typer(keys, name="keys")
    app.add_typer(tenants, name="tenants")
