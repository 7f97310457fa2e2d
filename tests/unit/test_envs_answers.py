"""plait.envs.answers, plait.envs.template: what a reply says, what a prompt shows."""

import pytest

from plait.core.errors import ConfigError
from plait.envs.answers import AnswerMode, extract_answer
from plait.envs.template import check_template, fill


@pytest.mark.parametrize(
    ("mode", "reply", "answer"),
    [
        ("auto", "so <answer>1</answer> no, <answer> 2\n</answer> done", "2"),
        ("auto", "Let me think.\n\n Answer: 12 \n\n", "12"),
        ("auto", "The answer is 7", "7"),
        ("auto", "The answer is: -7", "-7"),
        ("auto", "", None),
        ("tag", "no tag\n12", None),
        ("tag", "<ANSWER>x</ANSWER>", "x"),
        ("last-line", "<answer>1</answer>\n3", "3"),
        ("last-line", "final answer: [1, 2]", "[1, 2]"),
        ("last-line", "**Answer:** 5", "5"),
        ("number", "7 + 5 = 12.", "12"),
        ("number", "it is 1,234.50, I think", "1234.50"),
        ("number", "x=-3", "-3"),
        ("number", "abc1", None),
        ("whole", "  a b\n", "a b"),
        ("whole", " \n", None),
    ],
)
def test_extraction(mode: AnswerMode, reply: str, answer: str | None) -> None:
    assert extract_answer(reply, mode) == answer


def test_only_known_columns_are_filled_in() -> None:
    text = fill(r"{q} in \boxed{} or {json: 1}, {other}", {"q": "{a}", "a": "secret"})
    assert text == r"{a} in \boxed{} or {json: 1}, {other}"


def test_a_template_that_hides_the_problem_is_refused() -> None:
    check_template("Q: {question}", "question", "x")
    with pytest.raises(ConfigError, match=r"must contain {question} \(did you mean qestion"):
        check_template("Q: {qestion}", "question", "x")
