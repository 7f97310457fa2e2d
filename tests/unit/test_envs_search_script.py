"""plait.envs.search.script and scoring: what a chunk means and what it earns."""

import pytest

from plait.envs.search.items import Item
from plait.envs.search.scoring import f1, score
from plait.envs.search.script import EXAMPLES, Answer, Ask, Move, parse

ITEM = Item(
    kind="currency",
    question="?",
    answers=("Yuan Renminbi", "CNY"),
    hops=("city:1", "country:CN"),
    city=1,
)


@pytest.mark.parametrize(
    ("text", "move"),
    [
        ("<search>city Graz</search>", Ask(query="city Graz")),
        ("I look.\n<search> city\nGraz </search> and", Ask(query="city Graz")),
        ("<answer>Euro</answer>", Answer(text="Euro")),
        ("<search>oops <search>Graz</search>", Ask(query="Graz")),
        ("<search>Graz", None),
        ("<search></search>", None),
        ("<search>Graz</answer>", None),
        ("Euro", None),
        ("", None),
    ],
)
def test_moves(text: str, move: Move) -> None:
    assert parse(text) == move


def test_the_examples_follow_their_own_rules() -> None:
    for _, script in EXAMPLES:
        said = [line for line in script.splitlines() if not line.startswith("<result>")]
        assert [type(parse(line)) for line in said] == [Ask, Ask, Answer]


def reward(answer: str | None, n_calls: int, *shown: str, shaping: float = 0.4) -> float:
    return score(ITEM, answer, n_calls=n_calls, shown=shown, shaping=shaping).reward


def test_the_reward_rises_with_each_part_and_stays_within_0_and_1() -> None:
    steps = [
        reward(None, 0),
        reward(None, 1),
        reward(None, 1, "city:1"),
        reward(None, 2, "city:1", "country:CN", "country:DE"),
        reward("Yuan", 2, "city:1", "country:CN"),
        reward("the Yuan Renminbi", 2, "city:1", "country:CN"),
    ]
    assert steps == pytest.approx([0, 0.2, 0.3, 0.4, 0.4 + 0.6 * 2 / 3, 1.0])
    assert reward("cny", 5, "city:1", "country:CN") == pytest.approx(1.0)


def test_more_searches_and_a_list_of_guesses_earn_nothing() -> None:
    assert reward(None, 5) == reward(None, 1)
    assert reward("Euro Dollar Yen Pound CNY", 1) < reward("CNY", 1) / 1.5


def test_without_shaping_the_answer_alone_counts() -> None:
    assert reward(None, 3, "city:1", "country:CN", shaping=0) == 0
    assert reward("CNY", 0, shaping=0) == 1


def test_f1_of_words() -> None:
    assert f1("", "Euro") == 0
    assert f1("+43", "+43") == f1("43", "+43") == 1
    assert f1("2,028,289", "2028289") == 1
