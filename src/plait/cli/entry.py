"""Entry: what the ``plait`` script calls. Nothing is imported before, so that a Ctrl-C while the
command is being imported is one line like any other."""

import sys

INTERRUPTED = 130
"""Exit code after a Ctrl-C."""


def main() -> None:
    """Run the command."""
    try:
        from plait.cli.main import app

        app()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
