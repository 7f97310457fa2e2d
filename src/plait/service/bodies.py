"""Bodies: bytes from outside, unpacked and looked at before a handler sees them.

Decided here: how large a body may be, packed and unpacked (a bomb is stopped while it unfolds),
and what JSON is taken: UTF-8, numbers that a double or 64 bits hold (no NaN, no Infinity, no
``1e999``), text that can be written (no lone surrogates, no zero characters), no bottomless
nesting, and only so many parts: a parser and a validator keep the whole process to themselves, a
second for each megabyte that consists of the smallest parts there are. What a handler reads of a
JSON body is always something that the store and an answer can hold.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import zstandard

from plait.core.errors import RequestError, TooLarge, Unsupported
from plait.core.operations import MAX_NAMED
from plait.core.text import is_writable

MIB = 2**20
MAX_BODY = MIB
"""Most JSON is read on the event loop, where more would hold up everybody's answers."""
MAX_PROMPT = 8 * MIB
TOKEN_BYTES = 16
"""Of a prompt's token in JSON: as an id it has 8, as text 4, or 12 where all of it is escaped."""
NAMED = {"/api/v1/asample": MAX_NAMED * TOKEN_BYTES}
"""What may be named beside a prompt to be scored: each token with its column, if that is given."""
PROMPTS = frozenset({"/api/v1/asample", "/v1/completions", "/v1/chat/completions"})
"""Paths of prompts, which are as long as the longest context that is served."""
LARGE = {
    "/api/v1/forward_backward": 64 * MIB,
    "/v1/jobs": 16 * MIB,
}
"""Paths that need more and are read off the event loop: a client cuts gradients at 5 MB, but never
inside a datum."""
PIECE = 1024
"""Packed bytes that are unpacked at a time: zstd makes at most 32 MiB of them."""
MAX_DEPTH = 64
"""Of JSON; ours is below ten."""
MAX_PARTS = 100_000
"""Strings, lists and objects of one body. A client's largest, 1,024 data in JSON, have half as
many; telemetry, a chat or a job file has hundreds."""
MAX_VALUES = 100_000
"""Values, as their commas count them, where none is a prompt's or a gradient's number."""
MIN_INT, MAX_INT = -(2**63), 2**64 - 1

_SUSPECT = re.compile(rb"NaN|Infinity|\\u(?:[dD][89a-fA-F]|0000)|[eE]\+?\d{3}|\d{19}")
"""What a body must hold to be worth a second parse."""
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_STEPS = np.zeros(256, np.int8)
"""What a byte adds to the depth."""
_STEPS[[ord("["), ord("{")]], _STEPS[[ord("]"), ord("}")]] = 1, -1
_COMMA = ord(",")
_SUSPECT_BYTES = 32
"""No match of it is longer."""
_BLOCK = 2**16
"""Bytes that are looked at in one go: other threads have their turns in between."""


class TooManyParts(RequestError):
    """A body that nobody is to parse."""


def max_bytes(path: str, *, context: int) -> int:
    """Most that a body to this path may have; ``context``: tokens of the longest prompt."""
    if path in PROMPTS:
        return min(max(MAX_BODY, context * TOKEN_BYTES) + NAMED.get(path, 0), MAX_PROMPT)
    return LARGE.get(path, MAX_BODY)


def too_large(most: int) -> TooLarge:
    """The error of a body that has more."""
    return TooLarge(f"the body has more than {most} bytes: send less at once")


def unpack(packed: bytes, encoding: str, most: int) -> bytes:
    """The body as it was before ``Content-Encoding``."""
    if encoding in ("", "identity"):
        return packed
    if encoding != "zstd":
        raise Unsupported(f"content encoding {encoding!r} is not taken: send zstd or none")
    unpacker = zstandard.ZstdDecompressor(max_window_size=most).decompressobj()
    out, size = [], 0
    try:
        for start in range(0, len(packed), PIECE):
            if unpacker.eof:
                raise RequestError("the body goes on behind its zstd frame: send one frame")
            out.append(unpacker.decompress(packed[start : start + PIECE]))
            if (size := size + len(out[-1])) > most:
                raise too_large(most)
    except zstandard.ZstdError as error:
        raise RequestError(f"the body is not zstd ({error})") from None
    if not unpacker.eof or unpacker.unused_data:
        raise RequestError("the body is no whole zstd frame: send it again")
    return b"".join(out)


def check_json(body: bytes, *, numbers: bool = False) -> None:
    """RequestError if the body is JSON that nothing behind the doors can hold; TooManyParts if it
    is not to be parsed at all.

    ``numbers``: it may be made of them. What is no JSON at all is for whoever parses it.
    """
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8 (byte {error.start})") from None
    shape = _shape(body)
    if shape.n_parts > MAX_PARTS or (shape.n_commas >= MAX_VALUES and not numbers):
        raise TooManyParts(f"the JSON has more than {MAX_PARTS} parts: send less at once")
    if not _is_suspect(body) and shape.depth <= MAX_DEPTH:
        return
    try:
        value = json.loads(body, parse_constant=_constant, parse_float=_float, parse_int=_int)
        _walk(value, 0)
    except RecursionError:
        raise RequestError(f"the JSON is nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}") from None


def _is_suspect(body: bytes) -> bool:
    return any(
        _SUSPECT.search(body, start, start + _BLOCK + _SUSPECT_BYTES) is not None
        for start in range(0, len(body), _BLOCK)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """What there is outside strings, and these. Nothing, where it is clear that no bound is met."""

    depth: int = 0
    n_parts: int = 0
    n_commas: int = 0


def _shape(body: bytes) -> _Shape:
    few = body.count(b"[") + body.count(b"{") <= MAX_DEPTH
    if few and body.count(b'"') <= 2 * MAX_PARTS and body.count(b",") < MAX_VALUES:
        return _Shape()
    deepest = depth = n_quotes = n_back = n_opened = n_commas = 0
    for start in range(0, len(body), _BLOCK):
        text = np.frombuffer(body[start : start + _BLOCK], np.uint8)
        plain = np.append(-1 - n_back, np.flatnonzero(text != _BACKSLASH))
        n_back = int(text.size - 1 - plain[-1])  # that end the block
        quotes = np.flatnonzero(text == _QUOTE)
        before = plain[np.searchsorted(plain, quotes) - 1]
        quotes = quotes[(quotes - before) % 2 == 1]  # an even number of backslashes comes before
        steps = _STEPS[text]
        brackets = np.flatnonzero(steps)
        outside = (n_quotes + np.searchsorted(quotes, brackets)) % 2 == 0
        depths = depth + np.cumsum(steps[brackets[outside]], dtype=np.int64)
        if depths.size:
            deepest, depth = max(deepest, int(depths.max())), int(depths[-1])
        n_opened += int((steps[brackets[outside]] > 0).sum())
        commas = np.flatnonzero(text == _COMMA)
        n_commas += int(((n_quotes + np.searchsorted(quotes, commas)) % 2 == 0).sum())
        n_quotes += quotes.size
    return _Shape(depth=deepest, n_parts=n_opened + n_quotes // 2, n_commas=n_commas)


def _constant(word: str) -> NoReturn:
    raise RequestError(f"{word} is no JSON number: send finite numbers")


def _float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise RequestError(f"{text[:40]} is no finite number")
    return value


def _int(text: str) -> int:
    if len(text) > 20 or not MIN_INT <= (value := int(text)) <= MAX_INT:
        raise RequestError(f"{text[:40]} does not fit into 64 bits")
    return value


def _walk(value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise RequestError(f"the JSON is nested deeper than {MAX_DEPTH}")
    if isinstance(value, str):
        if "\0" in value or not is_writable(value):
            raise RequestError("a text has a zero character or half of a surrogate pair")
    elif isinstance(value, dict):
        for key, inner in value.items():
            _walk(key, depth)
            _walk(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _walk(inner, depth + 1)
