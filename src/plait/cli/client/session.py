"""Session: the server that this person's verbs ask."""

from collections.abc import Iterator
from contextlib import contextmanager

from plait.cli.client.profile import load_profile
from plait.cli.client.server import Server


@contextmanager
def connected() -> Iterator[Server]:
    """The server of the profile, for one verb."""
    with Server(load_profile()) as server:
        yield server
