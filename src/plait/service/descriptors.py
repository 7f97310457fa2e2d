"""Descriptors: how many files and sockets the process may have open, and what connections get of
it. Half stays for its own: the store, logs, pipes of workers, files that are read and sent. A
process that has none left can do nothing for anybody, and cannot even refuse a connection.
"""

import resource
from dataclasses import dataclass

MOST = 1 << 16
"""More than clients need; where the hard limit is lower, that."""
BACKLOG = 2048
"""Connections that wait in the kernel, where they cost the process nothing."""
BURST = 16
"""Of them, as many are taken up in one go as leave room for four times as many: asyncio takes up
more in each of the rounds that making one and closing it take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What connections may take."""

    connections: int
    at_once: int
    """Taken up in one go."""


def share_out() -> Shares:
    """Raise the soft limit (1024, as most machines have it, is one client's open polls)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(MOST, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return Shares(connections=most // 2, at_once=min(BACKLOG, most // BURST))
