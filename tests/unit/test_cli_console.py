"""plait.cli.console: what goes to a pipe is whole, and what a program reads is JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from obs_launch import two_job_launch
from rich.table import Table

from plait.cli import main
from plait.cli.client.show import show_facts, show_rows
from plait.cli.console import show, show_json


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


def test_what_people_have_named_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """No id becomes a picture, no label a colour, and none reaches the terminal as a command."""
    names = ["s-1:train:0", "[/red]x", "[bold]y"]
    show_rows({"run": "run_id"}, [{"run_id": name} for name in names], none="")
    out = capsys.readouterr().out
    assert all(name in out for name in names)
    show_rows({"label": "label"}, [{"label": "a\x1b]0;b\x07"}], none="")
    show_facts([("reason", "a\x1b[31mb")])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "a\\x1b[31mb" in out


def strict(text: str) -> object:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_numbers_that_json_lacks_become_null(capsys: pytest.CaptureFixture[str]) -> None:
    show_json({"low": float("-inf"), "all": [float("nan"), 1.5], "name": "é"})
    assert strict(capsys.readouterr().out) == {"low": None, "all": [None, 1.5], "name": "é"}


def test_a_report_is_json_where_an_interval_is_infinite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = two_job_launch(tmp_path / "launch")
    with pytest.raises(SystemExit):
        main.report(launch, format=main.Format.JSON)
    found: Any = strict(capsys.readouterr().out)
    reward = found["jobs"][1]["reward_last"]  # of one step: it has no width
    assert (reward["n"], reward["low"], reward["high"]) == (1, None, None)


@pytest.mark.parametrize("verb", [main.models, main.envs])
def test_lists_are_json(verb: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        verb(format=main.Format.JSON)
    assert strict(capsys.readouterr().out)
