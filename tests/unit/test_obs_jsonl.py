"""Append-only lines: complete, finite, and whole after a crash."""

import json
import math
from pathlib import Path

import pytest

from plait.core.errors import StoreError
from plait.obs.jsonl import BLOCK_BYTES, JsonlTail, JsonlWriter, drop_torn_line, dumps, read_jsonl


def test_a_row_is_on_the_file_when_write_returns(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path / "deep" / "a.jsonl")
    writer.write({"a": 1, "text": "é\n"})
    assert list(read_jsonl(tmp_path / "deep" / "a.jsonl")) == [{"a": 1, "text": "é\n"}]
    writer.close()
    writer.close()


def test_numbers_that_are_not_finite_become_null() -> None:
    value = {"a": math.nan, "b": [1.5, (math.inf,)], "c": {"d": -math.inf}}
    assert json.loads(dumps(value)) == {"a": None, "b": [1.5, [None]], "c": {"d": None}}


def test_lone_surrogates_are_escaped(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path / "a.jsonl")
    writer.write({"text": "\\ud800 and \ud800"})
    writer.close()
    assert list(read_jsonl(tmp_path / "a.jsonl")) == [{"text": "\\ud800 and \ud800"}]


def test_a_torn_line_is_ignored_by_readers_and_removed_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a":1}\n{"a":2')
    assert list(read_jsonl(path)) == [{"a": 1}]
    writer = JsonlWriter(path)
    writer.write({"a": 3})
    writer.close()
    assert list(read_jsonl(path)) == [{"a": 1}, {"a": 3}]


@pytest.mark.parametrize("length", [1, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 7])
def test_a_torn_line_of_any_length_is_cut(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":1}\n' + b"x" * length)
    assert drop_torn_line(path) == length
    assert path.read_bytes() == b'{"a":1}\n'
    path.write_bytes(b"x" * length)
    assert drop_torn_line(path) == length
    assert path.read_bytes() == b""


@pytest.mark.parametrize("line", ["{not json}", "[1]"])
def test_a_bad_line_in_the_middle_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"a":1}}\n{line}\n{{"a":2}}\n')
    with pytest.raises(StoreError, match=r"a\.jsonl:2 "):
        list(read_jsonl(path))


def test_a_missing_file_has_no_rows(tmp_path: Path) -> None:
    assert list(read_jsonl(tmp_path / "none.jsonl")) == []


def test_a_full_disk_is_a_store_error() -> None:
    writer = JsonlWriter("/dev/full")
    with pytest.raises(StoreError, match="free some space"):
        writer.write({"a": 1})
    writer.close()


def test_a_path_that_cannot_be_opened_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot write"):
        JsonlWriter(tmp_path / "file" / "a.jsonl")


def test_a_tail_reads_each_line_once_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    tail = JsonlTail(path)
    assert list(tail.more()) == []
    path.write_text('{"a":1}\n{"a":')
    assert list(tail.more()) == [(1, {"a": 1})]
    assert list(tail.more()) == []
    with path.open("r+") as file:
        file.write("gone   \n")  # it has been read: nobody looks at it again
        file.seek(0, 2)
        file.write("2}\n")
    assert list(tail.more()) == [(2, {"a": 2})]
    assert list(JsonlTail(path, after=1).more()) == [(2, {"a": 2})], "unread"


@pytest.mark.parametrize("again", ['{"a":1}\n', '{"a":1}\n{"a":2}\n{"a":3}\n{"a":4}\n'])
def test_a_tail_goes_on_behind_its_last_line_in_a_file_that_was_replaced(
    tmp_path: Path, again: str
) -> None:
    path, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    path.write_text('{"a":1}\n{"old":true}\n{"a":3}\n')
    tail = JsonlTail(path)
    assert [number for number, _ in tail.more()] == [1, 2, 3]
    other.write_text(again)
    other.replace(path)
    assert list(tail.more()) == [(n, {"a": n}) for n in (4,) if n <= again.count("a")]
    path.write_text('{"a":1}\n{"a":2}\n{"a":3}\n{"a":4}\n{"a":5}\n')
    assert [number for number, _ in tail.more()][-1] == 5


def test_a_line_that_a_tail_cannot_read_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a":1}\nno JSON\n{"a":3}\n')
    tail = JsonlTail(path)
    news = tail.more()
    assert next(news) == (1, {"a": 1})
    with pytest.raises(StoreError, match=r"a\.jsonl:2 is not JSON"):
        next(news)
    assert tail.last == 2
    assert list(tail.more()) == [(3, {"a": 3})]
