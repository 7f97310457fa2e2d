from pathlib import Path

import pytest

from plait.engines.torch.stops import StopScan
from plait.models.tiny import EOS_ID, write_tokenizer
from plait.models.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer(folder)


def first_hit(tokenizer: Tokenizer, text: bytes | list[int], *stops: str) -> int | None:
    """How many tokens it takes until a stop string is there."""
    scan = StopScan(tokenizer, stops)
    return next((i for i, token in enumerate(text, 1) if scan.push(token)), None)


def test_a_stop_that_spans_tokens_is_found_at_its_last_one(tokenizer: Tokenizer) -> None:
    assert first_hit(tokenizer, b"so END it", "END") == len(b"so END")


def test_text_without_a_stop_goes_on(tokenizer: Tokenizer) -> None:
    assert first_hit(tokenizer, b"so EN D it", "END", "\n\n") is None


def test_the_earliest_of_several_stops_counts(tokenizer: Tokenizer) -> None:
    assert first_hit(tokenizer, b"a\nb\n\nc", "\n\n", "c", "b\n") == len(b"a\nb\n")


def test_characters_of_several_bytes_are_waited_for(tokenizer: Tokenizer) -> None:
    text = "1 → 2 𝄞 é".encode()
    assert first_hit(tokenizer, text, "→ 2") == len("1 → 2".encode())
    assert first_hit(tokenizer, text, "𝄞") == len("1 → 2 𝄞".encode())
    assert first_hit(tokenizer, text, "é") == len(text)


def test_broken_bytes_do_not_hide_what_follows(tokenizer: Tokenizer) -> None:
    assert first_hit(tokenizer, b"\xff" * 40 + b"END", "END") == 43


def test_a_stop_may_name_a_special_token(tokenizer: Tokenizer) -> None:
    assert first_hit(tokenizer, [97, EOS_ID], "<|end|>") == 2
