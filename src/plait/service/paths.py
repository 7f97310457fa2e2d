"""Paths: ``tinker://{model}/{section}/{name}``, the address of a checkpoint.

The section says what it can be used for. A name is a directory's name, so it is checked like a
run's: nothing in it can leave the directory.
"""

import re
from dataclasses import dataclass

from plait.core.errors import RequestError
from plait.core.ids import RUN_NAME
from plait.service.work import CheckpointKind

SECTIONS = {
    CheckpointKind.TRAINING: "weights",
    CheckpointKind.SAMPLER: "sampler_weights",
    CheckpointKind.EXTERNAL: "external_weights",
}
_KINDS = {section: kind for kind, section in SECTIONS.items()}
_MODEL = r"[A-Za-z0-9][A-Za-z0-9._+:-]{0,99}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A checkpoint's address."""

    model_id: str
    kind: CheckpointKind
    name: str

    def __str__(self) -> str:
        return f"tinker://{self.model_id}/{self.checkpoint_id}"

    @property
    def checkpoint_id(self) -> str:
        """What the API calls it within its run."""
        return f"{SECTIONS[self.kind]}/{self.name}"


def parse(text: str) -> Path:
    """RequestError says what a path looks like."""
    scheme, _, rest = text.partition("://")
    parts = rest.split("/")
    if scheme == "tinker" and len(parts) == 3 and re.fullmatch(_MODEL, parts[0]):
        return of(parts[0], f"{parts[1]}/{parts[2]}")
    raise RequestError(f"{text[:200]!r} is no tinker://MODEL/weights/NAME")


def of(model_id: str, checkpoint_id: str) -> Path:
    """The checkpoint ``{section}/{name}`` of a model."""
    section, _, name = checkpoint_id.partition("/")
    if section not in _KINDS:
        raise RequestError(f"checkpoint {checkpoint_id[:200]!r}: begin with {', '.join(_KINDS)}")
    return Path(model_id=model_id, kind=_KINDS[section], name=checked(name))


def checked(name: str) -> str:
    """A checkpoint's name."""
    if re.fullmatch(RUN_NAME, name):
        return name
    raise RequestError(
        f"checkpoint name {name[:200]!r}: use up to 100 letters, digits, . _ + -, a letter or "
        "digit first"
    )
