"""plait.cli.console: what goes to a pipe is whole."""

import pytest
from rich.table import Table

from plait.cli.console import show


def test_a_table_that_is_piped_is_as_wide_as_it_must_be(capsys: pytest.CaptureFixture[str]) -> None:
    headings = [f"a heading of some length {i}" for i in range(12)]
    table = Table()
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    show(table)
    out = capsys.readouterr().out
    assert "…" not in out
    assert all(heading in out for heading in headings)
    show("a short line")
    assert capsys.readouterr().out == "a short line\n"
