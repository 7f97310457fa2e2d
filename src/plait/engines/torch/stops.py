"""Stops: has the text of a sample come to contain one of its stop strings?

Only the tail is decoded: a few tokens of context, because some decoders drop a leading space, and
the tokens since. A character that is still incomplete (it is spread over several tokens) waits for
its rest. Text is never sent back into tokens.
"""

from collections.abc import Sequence

from plait.models.tokenizer import Tokenizer

INCOMPLETE = "\ufffd"
"""What a decoder shows for the first bytes of a character."""

CONTEXT_TOKENS = 4
"""Tokens decoded before the new ones, so that these look as they do in the middle of a text."""

PATIENCE_TOKENS = 8
"""No character has more bytes than four; what is still incomplete after this many tokens is noise
that decodes to the replacement sign for good."""


class StopScan:
    """Incremental search in one sample's text."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._keep = max(len(s) for s in stops) - 1
        self._ids: list[int] = []
        self._n_context = 0
        self._tail = ""

    def push(self, token: int) -> bool:
        """Add a drawn token; True if the text now contains a stop string."""
        self._ids.append(token)
        context = self._decode(self._ids[: self._n_context])
        text = self._decode(self._ids)
        waiting = len(self._ids) - self._n_context
        if text.endswith(INCOMPLETE) and waiting < PATIENCE_TOKENS:
            return False
        window = self._tail + text[len(context) :]
        self._tail = window[-self._keep :] if self._keep else ""
        self._ids = self._ids[-CONTEXT_TOKENS:]
        self._n_context = len(self._ids)
        return any(s in window for s in self._stops)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special=False) if ids else ""
