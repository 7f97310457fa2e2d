"""Worker: the main program of an environment's process (``python -m plait.envs.apart.worker FD``).

The first request makes the source; then samples are served side by side on one event loop, as they
are in a launch of one's own: who must wait awaits, who computes for long uses a process. Requests
and replies are JSON in frames on one socket.

Invariants: an exception is a reply, not the end; a reply bears its request's number; a copy of this
process that the code has forked neither reads nor answers; what the code prints, and the traceback
of what it raises, is in the log and nowhere else; the process and all that it has started end with
its parent (``keeper``). Deadlines are the parent's: it cancels, and then kills.
"""

import asyncio
import json
import os
import socket
import sys
from typing import Any

from plait.cluster.frames import frame, read_frame
from plait.cluster.keeper import kept
from plait.cluster.limits import goes_first, limit_files, limit_memory, limit_processes
from plait.envs.apart.making import make
from plait.envs.apart.printing import bounded_prints
from plait.envs.apart.samples import Samples
from plait.envs.apart.wording import failure, said

MAX_REQUEST_BYTES = 64 * 2**20
"""A sample's tokens, or the configuration: what plait sends is not longer."""
MAX_FILE_BYTES = 2**28
"""Of each file, the log among them: what is printed beyond that is dropped."""
MAX_PROCESSES = 4096
"""A fork bomb ends here; older kernels count all of a user's processes, so it is not less."""


def main() -> None:
    """Serve until the socket closes."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    nothing = os.open(os.devnull, os.O_RDWR)
    fd = channel.fileno()
    os.register_at_fork(after_in_child=lambda: os.dup2(nothing, fd, inheritable=False))
    bounded_prints()
    asyncio.run(_serve(channel))


async def _serve(channel: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=channel)
    own = os.getpid()

    def answer(number: int, body: bytes) -> None:
        if os.getpid() != own:
            # The code has forked, and its child came back here: the channel is not the child's.
            os._exit(1)
        writer.write(frame(number, body))

    number, setup = await _request(reader)
    try:
        _limit(setup)
        source, about = make(setup)
    except BaseException as error:  # the recorder: whatever a module raises when it is imported
        answer(number, failure(error))
        await writer.drain()
        return
    answer(number, said(about))
    samples = Samples(source, answer)
    while True:
        try:
            number, request = await _request(reader)
        except (asyncio.IncompleteReadError, OSError, ValueError):
            os._exit(0)  # nobody asks any more: whatever the code still does is for nobody
        samples.take(number, request)


async def _request(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    number, body = await read_frame(reader, MAX_REQUEST_BYTES)
    return number, json.loads(body)


def _limit(setup: dict[str, Any]) -> None:
    sys.path[:0] = [p for p in setup["sys_path"] if p not in sys.path]
    goes_first()
    limit_memory(setup["memory_bytes"])
    limit_files(MAX_FILE_BYTES)
    limit_processes(MAX_PROCESSES)


if __name__ == "__main__":
    kept(main)
