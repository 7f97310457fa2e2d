"""Mathematics: ``math-verify``, equality of mathematical answers by the library of that name.

Its own timeouts are signals, which work on a main thread only: here it is the main thread of a
grader process. They stop most hard expressions; the process's deadline stops the rest. A timeout or
a fault of the library raises: by default it would pass for a wrong answer.
"""

from collections.abc import Sequence
from typing import Any

STEP_TIMEOUT_S = 3
"""For one parse or comparison: shorter than a grader's deadline, so that one hard expression is an
error of its own and costs no new process."""


def reward_prepare() -> None:
    """Import what takes a second before the first deadline runs."""
    import math_verify

    math_verify.verify(math_verify.parse("$1$"), math_verify.parse("$1$"))


def math_verify(
    prompts: Sequence[Any],
    completions: Sequence[str],
    answer: Sequence[Any] | None = None,
    solution: Sequence[Any] | None = None,
    **columns: Any,
) -> list[float | None]:
    """1 where the completion's answer equals the ``answer`` (or ``solution``) column.

    ``None`` where the column's own answer cannot be parsed: there is nothing to compare with.
    """
    gold = answer if answer is not None else solution
    if gold is None:
        raise ValueError("math-verify needs a column `answer` or `solution`")
    return [_one(c, g) for c, g in zip(completions, gold, strict=True)]


def _one(completion: str, gold: Any) -> float | None:
    from math_verify import verify

    if gold is None:
        return None
    # A bare "\frac12" is only found between delimiters.
    wanted = _parse(str(gold)) or _parse(f"${gold}$")
    if not wanted:
        return None
    given = _parse(completion)
    return float(verify(wanted, given, timeout_seconds=STEP_TIMEOUT_S, raise_on_error=True))


def _parse(text: str) -> Any:
    from math_verify import parse

    return parse(text, parsing_timeout=STEP_TIMEOUT_S, raise_on_error=True)
