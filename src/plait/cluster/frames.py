"""Frames: what goes over the channel between plait and a process that runs a user's code.

A frame is a number, a length and so many bytes. An answer bears the number of its question.
"""

import asyncio
import struct

HEADER = struct.Struct("!QQ")
"""A frame's number and how many bytes follow."""


def frame(number: int, body: bytes) -> bytes:
    """A frame as it is sent."""
    return HEADER.pack(number, len(body)) + body


async def read_frame(reader: asyncio.StreamReader, most: int) -> tuple[int, bytes]:
    """The next frame; IncompleteReadError at the channel's end, ValueError over ``most`` bytes."""
    number, n_bytes = HEADER.unpack(await reader.readexactly(HEADER.size))
    if n_bytes > most:
        raise ValueError(f"a frame of {n_bytes} bytes came, at most {most} are read")
    return number, await reader.readexactly(n_bytes)
