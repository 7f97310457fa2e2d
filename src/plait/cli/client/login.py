"""``plait login``: a key is tried before it is kept."""

import getpass
import sys

from plait.cli.client.profile import Profile, save_profile
from plait.cli.client.server import Server
from plait.cli.console import show_json
from plait.core.errors import ConfigError


def login_command(url: str, *, as_json: bool) -> int:
    """Remember ``url`` with the key that is asked for, or that standard input holds."""
    if "://" not in url:
        raise ConfigError(f"{url} is no address: it looks like http://127.0.0.1:8787")
    key = (getpass.getpass("Key: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()
    if not key:
        raise ConfigError("no key was given: plait serve prints one, plait keys add makes one")
    profile = Profile(url=url.rstrip("/"), key=key)
    with Server(profile) as server:
        me = server.get("/v1/me")
    file = save_profile(profile)
    if as_json:
        show_json({"url": profile.url, **me, "file": str(file)})
    else:
        print(f"logged in to {profile.url} as {me.get('name') or me.get('tenant_id')} ({file})")
    return 0
