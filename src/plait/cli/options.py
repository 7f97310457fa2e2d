"""Options: what all verbs share: how the command looks, in which form it answers, how it fails."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Annotated

import typer

from plait.cli.entry import INTERRUPTED
from plait.core.errors import PlaitError


def typer_app(help: str, *, alone: bool = True) -> typer.Typer:
    """A command with verbs. Without rich's markup: importing that takes longer than all the rest
    of ``--help``. ``alone``: without a verb it shows its help."""
    return typer.Typer(
        help=help,
        no_args_is_help=alone,
        invoke_without_command=not alone,
        pretty_exceptions_enable=False,
        add_completion=False,
        rich_markup_mode=None,
    )


class Format(StrEnum):
    """How a verb prints its result."""

    TABLE = "table"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="Table or JSON.")]


def _drop_output() -> None:
    """What could not be written is not tried again when the process ends."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def told(*, again: str = "") -> Iterator[None]:
    """Run a verb, its imports included: a PlaitError is one line on standard error, and so is a
    Ctrl-C that comes where the verb has nothing of its own to say (``again``: how to go on)."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except PlaitError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2 if error.http_status < 500 else 1) from None
    except BrokenPipeError:
        raise  # whoever read has gone: the command ends without a word
    except OSError as error:
        _drop_output()
        where = f"{error.filename}: " if error.filename else ""
        then = ": give another place" if error.filename or error.errno == errno.ENOSPC else ""
        print(f"error: {where}{error.strerror or error}{then}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print(f"interrupted: go on with  {again}" if again else "interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
