"""Parts: how many pieces a protobuf body has, counted before anything is made of them.

A piece takes two bytes on the wire and some eighty in memory, so a body within the limit of bytes
could still be gigabytes once it is parsed, and hold up everybody for as long as that takes. What
can be repeated without end lies on the two upper levels (data, and their chunks, inputs and spans).
"""

from collections.abc import Iterator

from plait.core.errors import RequestError

MAX_PARTS = 200_000
"""1,024 data, which is what a client sends at once, with 190 chunks, inputs and spans each."""
MODEL_ID, SEQ_ID, DATUM = 1, 2, 3
"""Fields of the request; the last is there once for each datum."""
MAX_SEQ = 2**31
MAX_ID = 200
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def check(body: bytes) -> None:
    """RequestError if there are too many, or if this is no protobuf."""
    n_parts = 0
    for number, start, end in _fields(body, 0, len(body)):
        n_parts += 1
        if number == DATUM:
            n_parts += sum(1 for _ in _fields(body, start, end, MAX_PARTS - n_parts))
        if n_parts > MAX_PARTS:
            raise RequestError(f"the body has more than {MAX_PARTS} parts: send less at once")


def address(body: bytes) -> tuple[str, int] | None:
    """The model and number of a request that could not be taken as a whole, if those can be read:
    clients write them before anything else."""
    model_id, seq = "", 0
    try:
        for number, start, end in _fields(body, 0, len(body)):
            if number == MODEL_ID and end - start <= MAX_ID:
                model_id = body[start:end].decode()
            elif number == SEQ_ID:
                seq = _varint(body, start, end)[0]
            if model_id and seq:
                break
    except (RequestError, UnicodeDecodeError):
        return None
    return (model_id, seq) if model_id and 1 <= seq < MAX_SEQ else None


def _fields(
    body: bytes, at: int, end: int, most: int = MAX_PARTS
) -> Iterator[tuple[int, int, int]]:
    """Number and place of each field of one message, ``most`` and one more at the most."""
    for _ in range(most + 1):
        if at >= end:
            return
        key, at = _varint(body, at, end)
        kind = key & 7
        if kind == _VARINT:
            start = at
            _, at = _varint(body, at, end)
        elif kind == _BYTES:
            size, start = _varint(body, at, end)
            at = start + size
        elif kind in (_FIXED64, _FIXED32):
            start, at = at, at + (8 if kind == _FIXED64 else 4)
        else:
            raise RequestError("the body is no protobuf: it has a field of no known kind")
        if at > end:
            raise RequestError("the body is no protobuf: it ends inside a field")
        yield key >> 3, start, at


def _varint(body: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = body[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
    raise RequestError("the body is no protobuf: it ends inside a number")
