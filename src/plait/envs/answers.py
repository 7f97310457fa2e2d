"""Answers: the part of a reply that is its answer.

- ``auto``: what stands in the last ``<answer>…</answer>``, else the last line that is not empty,
  without a leading ``Answer:``.
- ``tag``: the former only. ``last-line``: the latter only.
- ``number``: the last number, thousands separators removed.
- ``whole``: the reply, spaces at its ends aside.

``None`` means that there is none, which a scorer counts as a wrong answer, not as an error.
"""

import re
from collections.abc import Callable
from typing import Literal

AnswerMode = Literal["auto", "tag", "last-line", "number", "whole"]

TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
LABEL = re.compile(
    r"^[*_#\s]*(?:the\s+)?(?:final\s+)?answer[*_]*\s*(?::|is\b:?)[*_]*\s*", re.IGNORECASE
)
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?!\w)")


def extract_answer(reply: str, mode: AnswerMode) -> str | None:
    """The answer in ``reply``, or ``None``."""
    return _MODES[mode](reply)


def _tag(reply: str) -> str | None:
    found = TAG.findall(reply)
    return found[-1].strip() if found else None


def _last_line(reply: str) -> str | None:
    lines = [line.strip() for line in reply.splitlines() if line.strip()]
    return LABEL.sub("", lines[-1]) if lines else None


def _number(reply: str) -> str | None:
    found = NUMBER.findall(reply)
    return found[-1].replace(",", "").lstrip("+") if found else None


def _auto(reply: str) -> str | None:
    tagged = _tag(reply)
    return _last_line(reply) if tagged is None else tagged


_MODES: dict[str, Callable[[str], str | None]] = {
    "auto": _auto,
    "tag": _tag,
    "last-line": _last_line,
    "number": _number,
    "whole": lambda reply: reply.strip() or None,
}
