"""``plait report``: a launch's figures and its picture."""

from pathlib import Path

from plait.cli.console import show, show_json
from plait.obs.layout import LaunchLayout
from plait.obs.report import make_report, to_json, to_text


def report_command(directory: Path, *, alone: Path | None, as_json: bool) -> int:
    """Print the figures and draw ``report.png`` in the launch directory."""
    picture = LaunchLayout(directory).report
    report = make_report(directory, alone=alone, picture=picture)
    if as_json:
        show_json(to_json(report))
    else:
        show(to_text(report))
    return 0
