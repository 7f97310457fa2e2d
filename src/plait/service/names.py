"""Names: what things are called on the wire, and what they are called inside.

Session ``s-…``, model ``{session}:train:{n}``, sampler ``{session}:sample:{n}``, numbered request
``{model}:{seq}``, checkpoint ``tinker://{model}/{weights|…}/{name}``. A run is called like its
model, with dots, since that is also a directory's name.
"""

import re
from dataclasses import dataclass

from plait.core.errors import NotFound, RequestError
from plait.core.ids import RunId
from plait.service.work import CheckpointKind

MODEL_ID = re.compile(r"(s-[0-9a-f]{8,64}):train:(\d{1,9})")
REQUEST_ID = re.compile(r"(s-[0-9a-f]{8,64}:train:\d{1,9}):(\d{1,10})")
SCHEME = "tinker://"
CHECKPOINT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")
"""Also a directory's name, so nothing in it can lead elsewhere."""

FOLDERS = {
    CheckpointKind.TRAINING: "weights",
    CheckpointKind.SAMPLER: "sampler_weights",
    CheckpointKind.EXTERNAL: "external_weights",
}
_KINDS = {folder: kind for kind, folder in FOLDERS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointName:
    """A checkpoint as a path names it."""

    model_id: str
    kind: CheckpointKind
    name: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.model_id}/{FOLDERS[self.kind]}/{self.name}"


def session_of(model_id: str) -> str:
    """The session that a model was made in; NotFound if that is no model's id."""
    if (found := MODEL_ID.fullmatch(model_id)) is None:
        raise NotFound(f"there is no model {model_id[:120]!r}")
    return found[1]


def model_id(session_id: str, number: int) -> str:
    """A model's id."""
    return f"{session_id}:train:{number}"


def run_of(model_id: str) -> RunId:
    """The run that a model is."""
    return RunId(model_id.replace(":", "."))


def model_of(run_id: str) -> str:
    """The model that a run is; its own name if it is none's."""
    model_id = run_id.replace(".", ":")
    return model_id if MODEL_ID.fullmatch(model_id) else run_id


def request_id(model_id: str, seq: int) -> str:
    """A numbered request's id."""
    return f"{model_id}:{seq}"


def read_request_id(request_id: str) -> tuple[str, int]:
    """Model and number of a request; NotFound if that is no numbered request's id."""
    if (found := REQUEST_ID.fullmatch(request_id)) is None:
        raise NotFound(f"there is no request {request_id[:120]!r}")
    return found[1], int(found[2])


def checkpoint_name(name: str) -> str:
    """``name`` if a checkpoint can be called so."""
    if CHECKPOINT_NAME.fullmatch(name) is None:
        raise RequestError(
            f"checkpoint name {name[:60]!r}: use up to 128 letters, digits, . _ + -, a letter or "
            "digit first"
        )
    return name


def read_path(path: str) -> CheckpointName:
    """What a ``tinker://`` path names; NotFound if it can name nothing."""
    parts = path.removeprefix(SCHEME).split("/")
    if (
        path.startswith(SCHEME)
        and len(parts) == 3
        and MODEL_ID.fullmatch(parts[0])
        and parts[1] in _KINDS
        and CHECKPOINT_NAME.fullmatch(parts[2])
    ):
        return CheckpointName(model_id=parts[0], kind=_KINDS[parts[1]], name=parts[2])
    raise NotFound(f"there is no checkpoint {path[:200]!r}: give tinker://MODEL/weights/NAME")
