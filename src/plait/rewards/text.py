"""Text rewards: ``exact`` and ``contains``, against the ``answer`` column."""

from collections.abc import Sequence
from typing import Any


def exact(
    prompts: Sequence[Any], completions: Sequence[str], answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """1 where the completion, spaces at its ends aside, is the answer."""
    return [
        None if a is None else float(c.strip() == str(a).strip())
        for c, a in zip(completions, answer, strict=True)
    ]


def contains(
    prompts: Sequence[Any], completions: Sequence[str], answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """1 where the answer occurs in the completion, letter case aside; an empty answer is none."""
    return [
        None if a is None or not str(a).strip() else float(str(a).strip().lower() in c.lower())
        for c, a in zip(completions, answer, strict=True)
    ]
