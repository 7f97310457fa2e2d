import json
import struct
from math import prod
from pathlib import Path

from plait.models.registry import TINY_DIR, read_shape, resolve
from plait.models.tiny import CONFIG, EOS_ID, VOCAB_SIZE, write_tokenizer
from plait.models.tokenizer import Tokenizer

MAX_BYTES = 5_000_000
MAX_PARAMS = 2_400_000


def test_every_byte_is_its_own_id(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = Tokenizer(tmp_path)
    text = "".join(map(chr, range(128))) + "é→𝄞"
    assert list(tokenizer.encode(text)) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocab_size == VOCAB_SIZE


def test_end_token_is_one_id_that_decoding_leaves_out(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.eos_ids == (EOS_ID,)
    assert tokenizer.encode("a<|end|>") == (97, EOS_ID)
    assert tokenizer.decode([97, EOS_ID, VOCAB_SIZE - 1]) == "a"
    assert not tokenizer.has_chat_template


def test_shipped_model_is_small_and_in_bf16() -> None:
    path = resolve("tiny")
    files = list(path.glob("*.safetensors"))
    assert sum(f.stat().st_size for f in files) <= MAX_BYTES
    tensors = {name: t for f in files for name, t in _header(f).items()}
    assert {t["dtype"] for t in tensors.values()} == {"BF16"}
    shape = read_shape(path)
    assert shape.n_params == sum(prod(t["shape"]) for t in tensors.values()) <= MAX_PARAMS


def test_shipped_files_are_what_this_code_would_write(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert json.loads((TINY_DIR / name).read_text()) == json.loads(
            (tmp_path / name).read_text()
        )
    config = json.loads((TINY_DIR / "config.json").read_text())
    assert {k: config[k] for k in CONFIG} == CONFIG


def _header(file: Path) -> dict[str, dict[str, list[int]]]:
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    return {name: value for name, value in header.items() if name != "__metadata__"}
