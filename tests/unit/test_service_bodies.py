"""Bodies: bombs, broken frames, and JSON that nothing can hold."""

import json

import pytest
import zstandard

from plait.core.errors import PlaitError, RequestError, TooLarge, Unsupported
from plait.service.bodies import MAX_DEPTH, check_json, unpack

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
