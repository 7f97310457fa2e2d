"""Bodies: bombs, broken frames, and JSON that nothing can hold."""

import json
import re

import pytest
import zstandard
from hypothesis import assume, given
from hypothesis import strategies as st

from plait.core.errors import PlaitError, RequestError, TooLarge, Unsupported
from plait.core.operations import MAX_NAMED
from plait.service import bodies
from plait.service.bodies import (
    MAX_BODY,
    MAX_DEPTH,
    MAX_PROMPT,
    TOKEN_BYTES,
    TooManyParts,
    check_json,
    max_bytes,
    unpack,
)

MOST = 2**20


def pack(body: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(body)


@pytest.mark.parametrize("n", [0, 1, 1000, MOST])
def test_what_was_packed_comes_out(n: int) -> None:
    body = bytes(i % 251 for i in range(n))
    assert unpack(pack(body), "zstd", MOST) == body
    assert unpack(body, "", MOST) == body


def test_a_bomb_is_stopped_while_it_unfolds() -> None:
    compressor = zstandard.ZstdCompressor(level=19).compressobj()
    bomb = b"".join(compressor.compress(bytes(2**20)) for _ in range(400)) + compressor.flush()
    assert len(bomb) < 2**16, "400 MiB that look small"
    with pytest.raises(TooLarge):
        unpack(bomb, "zstd", 16 * MOST)


@pytest.mark.parametrize(
    "packed",
    [
        b"no zstd at all",
        pack(b"x" * 1000)[:-3],
        pack(b"x" * 1000) + b"more",
        pack(b"x" * 100) * 2,
        b"\x28\xb5\x2f\xfd",
        b"",
    ],
)
def test_a_broken_frame_is_refused(packed: bytes) -> None:
    with pytest.raises(RequestError):
        unpack(packed, "zstd", MOST)


def test_other_encodings_are_not_taken() -> None:
    with pytest.raises(Unsupported):
        unpack(b"x", "gzip", MOST)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": NaN}',
        b'{"a": [1, -Infinity]}',
        b'{"a": 1e999}',
        b'{"a": -1E+400}',
        b'{"a": 18446744073709551616}',
        b'{"a": -9223372036854775809}',
        b'{"a": 1' + b"0" * 5000 + b"}",
        b'{"a": "\\ud800"}',
        b'{"\\uDFFF": 1}',
        b'{"a": "x\\u0000"}',
        b'{"a": "\xff"}',
        '{"a": 1}'.encode("utf-16"),
        b"[" * (MAX_DEPTH + 2) + b"]" * (MAX_DEPTH + 2),
        b'{"a":' * 100_000,
        b'["]",' * 100 + b"0" + b"]" * 100,
        b'["\\"]]",' * 100 + b"0" + b"]" * 100,
    ],
)
def test_json_that_nothing_can_hold_is_refused(body: bytes) -> None:
    with pytest.raises(PlaitError) as caught:
        check_json(body)
    assert caught.value.http_status == 400
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "value",
    [
        {"a": "NaN is a word here, as is Infinity"},
        {"a": 2**64 - 1, "b": -(2**63), "c": 1e308, "d": 5e-324},
        {"a": "[" * 1000 + "{" * 1000},
        {"a": "\U0001f600 \\ud800 is escaped"},
        [[[[[[1]]]]]],
    ],
)
def test_what_can_be_held_is_taken(value: object) -> None:
    for ascii_only in (True, False):
        check_json(json.dumps(value, ensure_ascii=ascii_only).encode())


@given(st.text(alphabet='[]{},"\\ax', max_size=60), st.integers(1, 7))
def test_what_is_outside_strings_is_counted_wherever_a_body_is_cut(text: str, block: int) -> None:
    body = (text + '"' * (text.count('"') % 2)).encode()
    strings = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
    lexed = strings.sub(b"", body)
    assume(b'"' not in lexed and b"\\" not in lexed)  # else it is no JSON, and not ours to refuse
    depth = deepest = 0
    for byte in lexed:
        depth += (byte in b"[{") - (byte in b"]}")
        deepest = max(deepest, depth)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "_BLOCK", block)
        patch.setattr(bodies, "MAX_DEPTH", -1)  # so that few brackets are counted too
        found = bodies._shape(body)
    assert found.depth == deepest
    assert found.n_parts == len(strings.findall(body)) + sum(byte in b"[{" for byte in lexed)
    assert found.n_commas == lexed.count(b",")


N = bodies.MAX_PARTS
MANY = {
    "lists": b"[" + b"[]," * N + b"0]",
    "objects": b"[" + b"{}," * N + b"0]",
    "keys": b"{" + b",".join(b'"%d":1' % i for i in range(N + 1)) + b"}",
    "texts": b"[" + b'"",' * N + b'""]',
}


@pytest.mark.parametrize("body", MANY.values(), ids=MANY)
@pytest.mark.parametrize("numbers", [True, False])
def test_a_body_of_too_many_parts_is_not_parsed(body: bytes, numbers: bool) -> None:
    with pytest.raises(TooManyParts):
        check_json(body, numbers=numbers)


def test_only_prompts_and_gradients_are_made_of_numbers() -> None:
    body = b'{"file": [' + b"1," * N + b"1]}"
    check_json(body, numbers=True)
    with pytest.raises(TooManyParts):
        check_json(body)


def test_a_long_text_is_one_part_whatever_it_says() -> None:
    check_json(json.dumps({"file": '[{"a": 1}, "b"],' * N}).encode())


def test_a_suspect_is_found_wherever_a_body_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for block in range(1, 30):
        monkeypatch.setattr(bodies, "_BLOCK", block)
        with pytest.raises(RequestError):
            check_json(b'{"a": "a text before it", "b": 18446744073709551616}')


def test_a_prompt_may_be_as_long_as_the_longest_context() -> None:
    chat = "/v1/chat/completions"
    small, middle, large = (max_bytes(chat, context=n) for n in (2048, 131_072, 10**9))
    assert (small, middle, large) == (MAX_BODY, 131_072 * TOKEN_BYTES, MAX_PROMPT)
    assert max_bytes("/api/v1/asample", context=2048) == MAX_BODY + MAX_NAMED * TOKEN_BYTES
    assert max_bytes("/v1/jobs", context=2048) == max_bytes("/v1/jobs", context=10**9)
