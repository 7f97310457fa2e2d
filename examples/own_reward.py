"""Reward functions in TRL's shape: lists in, a list out, one entry per completion.

``None`` means "this reward does not apply here"; it is not 0. The task's columns (here ``answer``)
come by keyword. The functions run in a process of their own that is killed at the deadline.
"""


def letters_right(prompts, completions, answer, **columns):
    """Share of the letters that stand where they should."""
    return [
        sum(a == b for a, b in zip(text.partition(";")[0], right, strict=False)) / len(right)
        for text, right in zip(completions, answer, strict=True)
    ]


def short(prompts, completions, **columns):
    """1 for an answer that ends by itself."""
    return [1.0 if ";" in text else 0.0 for text in completions]
