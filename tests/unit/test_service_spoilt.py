"""What must not be done since something before it failed: whose fault it is, and which request is
named."""

from typing import Literal

import pytest

from plait.service.entry import Entry
from plait.service.ports import Failed
from plait.service.spoilt import spoilt, unmade
from plait.service.work import Kind


def _entry(seq: int, kind: Kind = Kind.FORWARD_BACKWARD, *, at: float = 0.0) -> Entry:
    return Entry(seq=seq, kind=kind, accepted_at=at)


def _failed(entry: Entry, category: Literal["user", "server"], now: float) -> Entry:
    entry.end(Failed(error="no good", category=category), now)
    return entry


@pytest.mark.parametrize(
    ("category", "status", "then"),
    [("user", 409, "mend that and ask"), ("server", 500, "; ask for both again")],
)
def test_a_step_is_refused_by_the_fault_of_the_first_gradient_that_failed(
    category: Literal["user", "server"], status: int, then: str
) -> None:
    before = [_entry(1), _failed(_entry(2), category, 5.0), _failed(_entry(3), category, 6.0)]
    step = _entry(4, Kind.OPTIM_STEP)
    error = spoilt({e.seq: e for e in (*before, step)}, step)
    assert error is not None
    assert error.http_status == status
    assert "(request 2: no good)" in str(error)
    assert then in str(error)


def test_one_whose_answer_only_the_store_has_is_named_all_the_same() -> None:
    gradient = _failed(_entry(1), "user", 5.0)
    gradient.outcome = None
    error = spoilt({1: gradient}, _entry(2, Kind.OPTIM_STEP))
    assert error is not None
    assert error.http_status == 409
    assert "(request 1: its answer says why)" in str(error)


def test_a_failure_that_the_client_could_see_refuses_nothing() -> None:
    gradient = _failed(_entry(1), "user", 5.0)
    assert spoilt({1: gradient}, _entry(2, Kind.OPTIM_STEP, at=6.0)) is None


@pytest.mark.parametrize(("category", "status"), [("user", 409), ("server", 500)])
def test_what_is_asked_of_a_model_that_was_not_made_fails_by_the_same_fault(
    category: Literal["user", "server"], status: int
) -> None:
    error = unmade(_failed(_entry(0, Kind.CREATE_MODEL), category, 1.0))
    assert error.http_status == status
    assert "(request 0: no good)" in str(error)
    assert unmade(None).http_status == 409
