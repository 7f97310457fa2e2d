"""Routing: known prompts stay where they are cached, unless that worker is overrun."""

from plait.core.ids import RunId, WorkerId
from plait.policies.routing import REMEMBERED, SLACK_SAMPLES, Homes, place

RUN = (RunId("run"), 1)
A, B = WorkerId("a"), WorkerId("b")


def test_the_idlest_gets_what_nobody_knows() -> None:
    assert place({}, {A: 3, B: 2}) == B
    assert place({}, {A: 2, B: 2}) == A


def test_a_known_prompt_stays_until_its_worker_has_far_more_to_do() -> None:
    assert place({B: 40}, {A: 0, B: SLACK_SAMPLES}) == B
    assert place({B: 40}, {A: 0, B: SLACK_SAMPLES + 1}) == A
    assert place({A: 32, B: 40}, {A: 0, B: 1}) == B


def test_a_later_turn_finds_the_earlier_and_a_common_instruction_is_no_home() -> None:
    homes = Homes()
    turn = tuple(range(100))
    homes.put(RUN, turn, A)
    assert homes.matches(RUN, (*turn, *range(50))) == {A: 96}
    assert homes.matches(RUN, (*turn[:30], *range(500, 600))) == {}
    assert homes.matches((RunId("other"), 1), turn) == {}
    assert homes.matches((RUN[0], 2), turn) == {}
    homes.put(RUN, (*turn[:60], *range(900, 940)), B)
    assert homes.matches(RUN, turn) == {A: 100}
    homes.forget(A)
    assert homes.matches(RUN, turn) == {}


def test_what_is_remembered_is_bounded() -> None:
    homes = Homes()
    for i in range(REMEMBERED + 10):
        homes.put(RUN, (i,), A)
    assert len(homes._at) == REMEMBERED
    assert homes.matches(RUN, (0,)) == {}
