"""Descriptors: how many files and sockets the process may have open, and what connections get of
it. Half stays for its own: the store, logs, pipes of workers, files that are read and sent. A
process that has none left can do nothing for anybody, and cannot even refuse a connection.
"""

import resource
from dataclasses import dataclass

MOST = 1 << 16
"""More than clients need; where the hard limit is lower, that."""
BACKLOG = 2048
"""Connections that wait to be taken up, which happens to all of them in one go."""
BURST = 16
"""Four times as many can be open before the first is looked at: asyncio takes up more in each of
the rounds that making it and closing it take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What connections may take."""

    connections: int
    backlog: int


def share_out() -> Shares:
    """Raise the soft limit (1024, as most machines have it, is one client's open polls)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(MOST, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return Shares(connections=most // 2, backlog=min(BACKLOG, most // BURST))
