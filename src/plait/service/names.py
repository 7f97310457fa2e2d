"""Names: what things are called on the wire, and what they are called inside.

Session ``s-…``, model ``{session}:train:{n}``, sampler ``{session}:sample:{n}``, custom loss
``{session}:loss:{n}``, numbered request ``{model}:{seq}``. A run is called like its model, with
dots, since that is also a directory's name. Checkpoints' names are ``paths``'.
"""

import re

from plait.core.errors import NotFound
from plait.core.ids import RunId

MODEL_ID = re.compile(r"(s-[0-9a-f]{8,64}):train:(\d{1,9})")
REQUEST_ID = re.compile(r"(s-[0-9a-f]{8,64}:train:\d{1,9}):(\d{1,10})")
LOSS_ID = re.compile(r"(s-[0-9a-f]{8,64}):loss:([0-9]{1,10})")


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


def loss_id(session_id: str, number: int) -> str:
    """A custom loss's id, and that of the request that made it."""
    return f"{session_id}:loss:{number}"


def read_loss_id(loss_id: str) -> tuple[str, int] | None:
    """Session and number of a custom loss; None if that is no custom loss's id."""
    found = LOSS_ID.fullmatch(loss_id)
    return None if found is None else (found[1], int(found[2]))
