"""plait.envs.dataset and plait.envs.rows: files in, problems out, held-out rows kept apart."""

import json
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import ConfigError
from plait.envs.dataset import DatasetSource
from plait.envs.registry import make_source
from plait.models.tokenizer import Tokenizer


@pytest.fixture
def tokenizer(byte_model: Path) -> Tokenizer:
    return Tokenizer(byte_model)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """30 prompts, the first ten of them twice."""
    return write(tmp_path / "x.jsonl", [*range(30), *range(10)])


def write(path: Path, numbers: list[int]) -> Path:
    rows = [{"prompt": f"double {n}", "answer": 2 * n, "level": n % 3} for n in numbers]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return path


def source(tokenizer: Tokenizer, file: Path, seed: int = 0, **config: Any) -> DatasetSource:
    made = make_source("dataset", {"file": str(file), **config}, tokenizer, seed)
    assert isinstance(made, DatasetSource)
    return made


async def test_prompt_columns_and_no_reward_of_its_own(tokenizer: Tokenizer, file: Path) -> None:
    made = source(tokenizer, file, system="Think.", template=r"{prompt} in \boxed{}, {level}")
    env = made.make(0, "eval")
    text = tokenizer.decode(await env.start())
    n = int(env.columns()["answer"]) // 2
    assert text == f"Think.\ndouble {n} in " + r"\boxed{}, " + str(n % 3)
    assert env.columns() == {"answer": 2 * n, "level": n % 3}
    turn = await env.step((1,))
    assert turn.done
    assert turn.reward is None


GOOD = b'{"prompt": "one", "answer": 1}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD + b'{"prompt": "caf\xe9", "answer": 1}\n', "line 2 is not UTF-8 (byte 0xe9)"),
        (GOOD.decode().encode("utf-16"), "is UTF-16: save it as UTF-8"),
        (b"\xfe\xff\x00{", "is UTF-16: save it as UTF-8"),
        (GOOD + b'{"prompt": "\\ud800", "answer": 1}\n', "line 2 holds half a character"),
        (GOOD + b'{"prompt": "x", "\\udfff": 1}\n', "line 2 holds half a character"),
        (GOOD + b'{"prompt": "x", "answer": ' + b"9" * 5000 + b"}\n", "line 2 holds a number of"),
        (GOOD + b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}\n", "line 2 has more than 64"),
        (GOOD + b'{"prompt": ' + b"[" * 64 + b"]" * 64 + b"}\n", "line 2 has more than 64"),
        (GOOD + b'{"prompt": ' + b'{"a":' * 64 + b"1" + b"}" * 65 + b"\n", "line 2 has more than"),
        (GOOD + b"\x00\x00\n", "line 2 is no JSON"),
    ],
)
def test_damage_is_one_line_that_names_the_line(
    content: bytes, message: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_bytes(content)
    with pytest.raises(ConfigError) as found:
        source(tokenizer, tmp_path / "bad.jsonl")
    text = str(found.value)
    assert f"bad.jsonl {message}" in text
    assert "\n" not in text
    text.encode()


def test_what_only_looks_like_damage_is_read(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "good.jsonl"
    rows = [
        b'\xef\xbb\xbf{"prompt": "a \\ud83d\\ude00", "answer": 1}\r\n',
        b'{"prompt": "' + b"[" * 100 + b'", "answer": ' + b"[" * 60 + b"]" * 60 + b"}",
    ]
    file.write_bytes(b"\n".join(rows))
    made = source(tokenizer, file, eval_fraction=0.0)
    assert sorted(row["prompt"] for row in made.train) == ["[" * 100, "a \U0001f600"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("x" * 300 + ".jsonl", "File name too long"), ("~nobody-here/x.jsonl", "write the path out")],
)
def test_a_name_that_is_none(name: str, message: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        make_source("dataset", {"file": name}, tokenizer, 0, "." if name[0] == "~" else tmp_path)


def prompts(made: DatasetSource, split: str, n: int, first: int = 0) -> list[str]:
    return [made.problem(i, split).prompt for i in range(first, first + n)]


def test_splits_are_apart_and_the_same_under_every_seed(tokenizer: Tokenizer, file: Path) -> None:
    one, two = (
        source(tokenizer, file, eval_fraction=0.2),
        source(tokenizer, file, 7, eval_fraction=0.2),
    )
    held = set(prompts(one, "eval", 50))
    assert held == set(prompts(two, "eval", 50))
    assert len(held) == 6
    seen = set(prompts(one, "train", 200)) | set(prompts(two, "train", 200))
    assert not held & seen
    assert len(held | seen) == 30


def test_each_epoch_has_every_row_in_an_order_of_its_own(tokenizer: Tokenizer, file: Path) -> None:
    made = source(tokenizer, file, eval_fraction=0.0)
    first, second = prompts(made, "train", 40), prompts(made, "train", 40, first=40)
    assert sorted(first) == sorted(second)
    assert first != second
    assert prompts(source(tokenizer, file, eval_fraction=0.0), "train", 40, first=40) == second
    assert first != prompts(source(tokenizer, file, 1, eval_fraction=0.0), "train", 40)
    with pytest.raises(ConfigError, match="holds nothing out"):
        made.problem(0, "eval")


def test_an_eval_file_takes_its_prompts_out_of_train(
    tokenizer: Tokenizer, file: Path, tmp_path: Path
) -> None:
    held = write(tmp_path / "held.jsonl", [3, 4, 99])
    made = source(tokenizer, file, eval_file=str(held))
    assert prompts(made, "eval", 4) == ["double 3", "double 4", "double 99", "double 3"]
    assert made.n_dropped == 4
    assert not {"double 3", "double 4"} & set(prompts(made, "train", 100))
    with pytest.raises(ConfigError, match="every prompt of"):
        source(tokenizer, held, eval_file=str(held))


def test_parquet_is_read_alike(tokenizer: Tokenizer, file: Path, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    rows = [json.loads(line) for line in file.read_text().splitlines() if line]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    ours, theirs = source(tokenizer, file), source(tokenizer, tmp_path / "x.parquet")
    assert prompts(ours, "train", 40) == prompts(theirs, "train", 40)
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(ConfigError, match="cannot be read as Parquet"):
        source(tokenizer, tmp_path / "bad.parquet")


@pytest.mark.parametrize(
    ("text", "config", "says"),
    [
        ("", {}, "no rows"),
        ('{"prompt": "a", "answer": 1}\n{', {}, "line 2 is no JSON"),
        ("[1]", {}, "line 1 is no object"),
        ('{"promt": "a", "answer": 1}', {}, "row 1 has no prompt: did you mean promt"),
        ('{"prompt": "a"}', {}, "row 1 has no answer"),
        ('{"prompt": 5, "answer": 1}', {}, "holds int: use text or a list of messages"),
        ('{"prompt": "a", "answer": 1}', {"template": "{p}"}, "must contain {prompt}"),
        ('{"prompt": "a", "answer": 1}', {"eval_fracton": 0}, "did you mean eval_fraction"),
        ('{"prompt": "a", "answer": 1}', {"eval_fraction": 1}, "eval_fraction"),
        ('{"prompt": [{"role": "user"}], "answer": 1}', {}, "no chat template"),
    ],
)
def test_bad_files_and_keys(
    tokenizer: Tokenizer, tmp_path: Path, text: str, config: dict[str, Any], says: str
) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        source(tokenizer, file, **config)


def test_paths(tokenizer: Tokenizer, file: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        source(tokenizer, file.with_name("absent.jsonl"))
    with pytest.raises(ConfigError, match=r"neither \.jsonl nor \.parquet"):
        source(tokenizer, file.rename(file.with_suffix(".txt")))
    write(file, [1, 2])
    assert (
        make_source("dataset", {"file": "x.jsonl"}, tokenizer, 0, str(file.parent)).max_turns == 1
    )
