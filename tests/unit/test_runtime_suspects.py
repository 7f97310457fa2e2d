"""Suspects: nobody is blamed for a death in company, and the culprit is found."""

from plait.core.ids import RunId
from plait.runtime.suspects import Suspects

A, B, C = RunId("a"), RunId("b"), RunId("c")


def test_deaths_in_company_are_nobodys_and_then_one_run_goes_alone() -> None:
    suspects = Suspects()
    assert suspects.may_send([A, B], set()) is None
    assert suspects.lost({A, B}) is None
    assert suspects.may_send([A, B], set()) is None
    assert suspects.lost({A, B}) is None
    assert suspects.may_send([A, B, C], set()) == {A}
    assert suspects.may_send([A, B, C], {A}) == {A}
    assert suspects.may_send([A, B, C], {A, C}) == set()


def test_a_death_under_one_run_alone_is_its_doing_and_the_others_stay_clear() -> None:
    suspects = Suspects()
    for _ in range(3):
        suspects.lost({A, B})
    assert suspects.lost({A}) == A
    suspects.clear(A)
    assert suspects.may_send([B], set()) == {B}


def test_a_finished_sample_clears_its_run() -> None:
    suspects = Suspects()
    suspects.lost({A})
    suspects.lost({A})
    suspects.clear(A)
    assert suspects.lost({A}) is None
    assert suspects.may_send([A, B], set()) is None
