"""plait.cli.demo: its directory must be new; figures that there are not are dashes."""

from pathlib import Path

import pytest

from plait.cli import demo, main


def test_a_directory_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(SystemExit) as end:
        main.demo(tmp_path)
    assert end.value.code == 2
    assert "give --dir a new one" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_missing_figures(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = dict.fromkeys(
        ("tpts_s", "alone_tpts_s", "stretch", "held_out_first", "held_out_last", "gain")
    )
    row = {**nothing, "gain_ci95": None}
    full = {**dict.fromkeys(nothing, 0.5), "gain_ci95": [0.25, 0.75]}
    demo._print(
        {
            "jobs": {"none": row, "full": full},
            "aggregate": None,
            "worst_stretch": None,
            "shared_s": 2.0,
            "sequential_s": 3.0,
        }
    )
    out = capsys.readouterr().out
    assert "– (– … –)" in out
    assert "+0.50 (+0.25 … +0.75)" in out
    assert "same work in 2 s instead of 3 s" in out
