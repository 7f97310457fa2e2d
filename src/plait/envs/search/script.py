"""Script: the text that policy and tool exchange: prompt, moves, results.

``<search>query</search>`` asks, ``<result>documents</result>`` answers inside the same turn,
``<answer>text</answer>`` ends. The worked examples do what the task needs (look up the city, then
its country) with results as long and as full of other facts as real ones.
"""

import re
from dataclasses import dataclass

from plait.models.tokenizer import Tokenizer

STOP = ("</search>", "</answer>")
OPEN_RESULT, CLOSE_RESULT = "\n<result>", "</result>\n"
OPEN_ANSWER = "<answer>"

RULES = (
    "Answer the question with the help of a search engine. Write <search>words</search> to look "
    "something up. Look up the city, then look up its country. Then write <answer>the "
    "answer</answer>."
)
EXAMPLES = (
    (
        "What is the currency of the country in which the city Lyon lies?",
        "<search>city Lyon</search>\n"
        "<result>Lyon is a city in France. It has a population of 522,250 and ranks 3 among the "
        "country's cities. It lies at 45.75 degrees north</result>\n"
        "<search>country France</search>\n"
        "<result>France is a country in Europe with the capital Paris and the currency Euro (EUR)."
        " Its internet domain is .fr.</result>\n"
        "<answer>Euro</answer>",
    ),
    (
        "What is the calling code of the country in which the city Osaka lies?",
        "<search>city Osaka</search>\n"
        "<result>Osaka is a city in Japan. It has a population of 2,753,862 and ranks 3 among "
        "the country's cities.</result>\n"
        "<search>country Japan</search>\n"
        "<result>Japan is a country in Asia with the capital Tokyo and the currency Yen (JPY). Its "
        "internet domain is .jp. Its calling code is +81. Its three-letter</result>\n"
        "<answer>+81</answer>",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A well-formed search."""

    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A well-formed answer."""

    text: str


Move = Ask | Answer | None
"""What a chunk of the policy means; ``None``: neither a search nor an answer."""


def prompt_tokens(
    tokenizer: Tokenizer, question: str, style: str, n_examples: int
) -> tuple[int, ...]:
    """The rules, worked examples and the question."""
    examples = EXAMPLES[:n_examples]
    if style == "plain":
        shots = "".join(f"Question: {q}\n{script}\n\n" for q, script in examples)
        return tokenizer.encode(f"{RULES}\n\n{shots}Question: {question}\n")
    messages = [{"role": "system", "content": RULES}]
    for asked, script in examples:
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": script})
    return tokenizer.chat([*messages, {"role": "user", "content": question}])


def parse(text: str) -> Move:
    """The first complete tag of a chunk; it ends at the first closing tag."""
    found = re.search(r"<(search|answer)>((?:(?!<search>|<answer>).)*?)</\1>", text, re.DOTALL)
    if found is None or not found[2].strip():
        return None
    said = " ".join(found[2].split())
    return Ask(query=said) if found[1] == "search" else Answer(text=said)
