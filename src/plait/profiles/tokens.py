"""Tokens: how many of a training batch go through the model's matrices.

The samples of a group begin with one prompt, which a training engine computes once. An upper bound:
what begins alike is seen only where it stands side by side, as a group's samples do.
"""

from collections.abc import Iterable, Sequence


def distinct_tokens(sequences: Iterable[Sequence[int]]) -> int:
    """Tokens of all sequences, less what each has in common with the beginning of the last."""
    total = 0
    before: Sequence[int] = ()
    for sequence in sequences:
        total += len(sequence) - _common(before, sequence)
        before = sequence
    return total


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
