"""Profile: which server, and with which key.

``PLAIT_URL`` and ``PLAIT_API_KEY``, else what ``plait login`` wrote to ``credentials.json`` under
``XDG_CONFIG_HOME/plait`` (``~/.config/plait``). Only the owner may read that file; a key is never
an argument of a command, where everybody on the machine could read it.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from plait.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A server and a key for it. ``repr`` keeps the key to itself."""

    url: str
    key: str

    def __repr__(self) -> str:
        return f"Profile(url={self.url!r})"


def credentials_file(environ: Mapping[str, str]) -> Path:
    """Where ``plait login`` writes."""
    base = environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "plait" / "credentials.json"


def load_profile(environ: Mapping[str, str] = os.environ) -> Profile:
    """The server to ask; ConfigError if none is known."""
    stored = _stored(credentials_file(environ))
    url = environ.get("PLAIT_URL") or (stored.url if stored else "")
    # A remembered key is for the remembered server: another one is not told it.
    known = stored.key if stored and stored.url == url.rstrip("/") else ""
    key = environ.get("PLAIT_API_KEY") or known
    if not url or not key:
        missing = "PLAIT_API_KEY" if url else "PLAIT_URL and PLAIT_API_KEY"
        raise ConfigError(f"no server is known: use plait login URL, or set {missing}")
    return Profile(url=url.rstrip("/"), key=key)


def save_profile(profile: Profile, environ: Mapping[str, str] = os.environ) -> Path:
    """Remember a server; the file."""
    file = credentials_file(environ)
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = file.with_suffix(".part")
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            json.dump(asdict(profile), out)
        part.replace(file)
    except OSError as error:
        raise ConfigError(
            f"cannot write {file} ({error.strerror}): set PLAIT_URL and PLAIT_API_KEY instead"
        ) from error
    return file


def _stored(file: Path) -> Profile | None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return Profile(url=str(found["url"]), key=str(found["key"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"cannot read {file}: use plait login URL again") from error
