"""YAML as people write it, and where each value stands."""

from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import ConfigError
from plait.jobs.yamlfile import YamlFile, read_yaml


@pytest.fixture
def read(tmp_path: Path):
    def reader(text: str) -> YamlFile:
        (tmp_path / "f.yaml").write_text(text)
        return read_yaml(tmp_path / "f.yaml")

    return reader


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("3E5", 3e5),
        (".5", 0.5),
        ("-1.", -1.0),
        ("7", 7),
        ("007", 7),
        ("true", True),
        ("on", "on"),
        ("no", "no"),
        ("2024-01-02", "2024-01-02"),
        ("1:30", "1:30"),
        ("$HOME", "$HOME"),
        ("null", None),
    ],
)
def test_scalars(read, text: str, value: Any) -> None:
    data = read(f"a: {text}").data
    assert data == {"a": value}
    assert type(data["a"]) is type(value)


def test_positions(read) -> None:
    file = read("a:\n  b: 1\n  c:\n    - x\n    - y: 2\n")
    name = str(file.path)
    assert file.at(("a", "b")) == f"{name}:2:3"
    assert file.at(("a", "c", 1, "y")) == f"{name}:5:7"
    assert file.at(("a", "c", 9)) == f"{name}:3:3"
    assert file.at(("zz",), ("a",)) == f"{name}:1:1"
    assert file.at(("zz",)) == f"{name}:1:1"


def test_anchors_and_merge_keys(read) -> None:
    file = read("a: &x {p: 1, q: 2}\nb:\n  <<: *x\n  q: 3\n")
    assert file.data["b"] == {"p": 1, "q": 3}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: 1\na: 2\n", r"f.yaml:2:1: `a` is given twice \(first on line 1\)"),
        ("x:\n  a: 1\n  a: 2\n", r"f.yaml:3:3: `a` is given twice"),
        ("a: [1\nb: 2", r"f.yaml:2:\d+: not YAML"),
        ("a: *nope", r"f.yaml:1:4: not YAML: found undefined alias"),
        ("a: !!python/object:os.system {}", "not YAML: could not determine a constructor"),
        ("a: &x [*x]", "unfold without end"),
        ("1: a", r"f.yaml:1:1: the key 1 is no word"),
        ("[a]: b", r"f.yaml:1:1: a key must be a word"),
        ("a: .nan", r"f.yaml:1:4: .nan is not a finite number"),
        ("b: [1, -.inf]", r"f.yaml:1:8: -.inf is not a finite number"),
        ("a: 1e999", "not a finite number"),
        ("", "is empty"),
        ("a: 1\n---\nb: 2\n", "not YAML: but found another document"),
        ("a: \x00", "not YAML"),
        ("a: 0" + "9" * 5000, r"f.yaml:1:4: 09{39}… is too large"),
        (f"a: {2**64}", r"f.yaml:1:4: 18446744073709551616 is too large"),
        (f"a: -{2**64}", "is too large"),
        ("a: " + "[" * 3000 + "]" * 3000, "f.yaml: it has more than 32 lists and mappings"),
        (
            "a: " + "[" * 32 + "]" * 32 + "\nb: " + "[" * 33 + "]" * 33,
            r"f.yaml:2:36: it has more than 32",
        ),
        ("a: 1\nb: !!bool 'maybe'", r"f.yaml:2:4: `maybe` is no bool"),
        ("a: !!bool 'true\n\n'", r"f.yaml:1:4: `true\\n` is no bool"),
        ("a: !!int 0x10", "`0x10` is no int"),
        ("a: !!float x", "`x` is no float"),
        ("a: !!null x", "`x` is no null"),
        ("a: !!float [1]", "f.yaml:1:4: not YAML: expected a scalar node"),
        ("a: !!timestamp xx", r"f.yaml:1:4: !!timestamp is no plain value"),
        ("a: !!timestamp 2024-01-02", "!!timestamp is no plain value"),
        ("a: !!binary /w==", "!!binary is no plain value"),
        ("a: !!set {x, y}", "!!set is no plain value"),
        ("a: !!omap [x: 1]", "!!omap is no plain value"),
        ("a: !!pairs [x: 1]", "!!pairs is no plain value"),
        (r'a: "\ud800"', r"f.yaml:1:4: it holds half a character"),
        (r'a: {"\ud800": 1}', r"f.yaml:1:5: it holds half a character"),
    ],
)
def test_what_is_no_job_file_is_refused_in_one_line(read, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    str(caught.value).encode()


def test_a_short_file_that_unfolds_into_billions_is_refused(read) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    with pytest.raises(ConfigError, match="unfold without end"):
        read("\n".join(lines))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no file .*gone.yaml"):
        read_yaml(tmp_path / "gone.yaml")
    with pytest.raises(ConfigError, match="cannot read"):
        read_yaml(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match="cannot read"):
        read_yaml(tmp_path / "bytes.yaml")
