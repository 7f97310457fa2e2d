"""Text: from a sample's tokens to what its reader sees, whole or as it comes.

The end token is no text, and a stop string and all behind it neither. While a sample is under way
only text that will stay is given out: what could yet become a stop string, or a character that is
not complete, waits. What was given out and the text of the whole agree.
"""

from collections.abc import Collection, Sequence

from plait.core.operations import Sampled, StopReason
from plait.models.tokenizer import Tokenizer

INCOMPLETE = "\ufffd"
"""What a decoder shows for the first bytes of a character."""


def text_of(
    tokenizer: Tokenizer, sampled: Sampled, *, stops: Sequence[str], ends: Collection[int]
) -> tuple[str, str]:
    """The text of an ended sample, and OpenAI's reason for its end."""
    whole = tokenizer.decode(said(sampled, ends))
    text = cut(whole, stops)
    at_limit = sampled.stop_reason is StopReason.LENGTH and text == whole
    return text, "length" if at_limit else "stop"


def said(sampled: Sampled, ends: Collection[int]) -> tuple[int, ...]:
    """A sample's tokens without the one that ended it."""
    tokens = sampled.tokens
    if sampled.stop_reason is StopReason.STOP and tokens and tokens[-1] in ends:
        return tokens[:-1]
    return tokens


def cut(text: str, stops: Sequence[str]) -> str:
    """Text up to the stop string that is complete first: the one that a reader of the text as it
    comes would find."""
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(found)[1]] if found else text


class Unfolding:
    """The text of one sample as its tokens come."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._tokenizer, self._stops = tokenizer, tuple(stops)
        self._ids: list[int] = []
        self._from = self._read = 0
        """Text of ``ids[from:read]`` is context: decoders look at what is before."""
        self._before = self._text = ""
        """Text of ``ids[:read]``, and all that is complete."""
        self._n_given = 0

    def push(self, tokens: Sequence[int]) -> str:
        """Text that is certain now and was not before."""
        self._ids.extend(tokens)
        context = self._tokenizer.decode(self._ids[self._from : self._read])
        text = self._tokenizer.decode(self._ids[self._from :])[len(context) :]
        self._text = self._before + text.rstrip(INCOMPLETE)
        if not text.endswith(INCOMPLETE):
            self._before = self._text
            self._from, self._read = self._read, len(self._ids)
        return self._give(self._n_certain())

    def end(self, text: str) -> str:
        """The rest, now that the whole text is known."""
        self._text = text
        return self._give(len(text))

    def _give(self, n: int) -> str:
        new = self._text[self._n_given : n]
        self._n_given = max(self._n_given, n)
        return new

    def _n_certain(self) -> int:
        """Characters that no stop string can take back."""
        whole = cut(self._text, self._stops)
        if len(whole) < len(self._text):
            return len(whole)
        held = 0
        for stop in self._stops:
            for n in range(min(len(stop) - 1, len(whole)), held, -1):
                if whole.endswith(stop[:n]):
                    held = n
                    break
        return len(whole) - held
