"""Stream: an answer in pieces, as server-sent events: ``data: {…}``, at the end ``data: [DONE]``.

Each piece of text goes out as soon as nothing can take it back (``text.Unfolding``); all pieces
together are the text of the whole answer. An error after the first piece is an event of its own,
which the client raises.
"""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from plait.core.errors import PlaitError
from plait.core.text import writable
from plait.service.openai_api.asked import Asked
from plait.service.openai_api.replies import chat_logprobs, text_logprobs, usage
from plait.service.openai_api.text import Unfolding, text_of
from plait.service.openai_api.watch import Piece, watch

Json = dict[str, Any]
DONE = "[DONE]"

Choice = Callable[[Piece, str, str | None], Json]
"""How a piece, its text and the reason why it is the last are told."""


def chat_choice(asked: Asked, *, logprobs: bool, ids: bool) -> Choice:
    """Pieces of the chat endpoint."""

    def tell(piece: Piece, text: str, reason: str | None) -> Json:
        choice: Json = {
            "index": piece.index,
            "delta": {"content": text},
            "logprobs": chat_logprobs(asked.tokenizer, piece.tokens, piece.logprobs, piece.topk)
            if logprobs
            else None,
            "finish_reason": reason,
        }
        return choice | ({"token_ids": list(piece.tokens)} if ids else {})

    return tell


def text_choice(asked: Asked, *, logprobs: bool, ids: bool) -> Choice:
    """Pieces of the plain endpoint."""
    offsets: dict[int, int] = {}

    def tell(piece: Piece, text: str, reason: str | None) -> Json:
        scored = None
        if logprobs:
            topk = piece.topk or [None] * len(piece.tokens)
            at = offsets.get(piece.index, 0)
            scored = text_logprobs(asked.tokenizer, piece.tokens, piece.logprobs, topk, at)
            offsets[piece.index] = at + sum(map(len, scored["tokens"]))
        choice: Json = {
            "index": piece.index,
            "text": text,
            "logprobs": scored,
            "finish_reason": reason,
        }
        return choice | ({"token_ids": list(piece.tokens)} if ids else {})

    return tell


async def events(
    asked: Asked, tell: Choice, *, head: Json, opening: Json | None, with_usage: bool
) -> AsyncGenerator[str, None]:
    """The events' data. ``opening`` is a delta that begins each choice."""
    texts: dict[int, Unfolding] = {}
    n_drawn = 0
    plain = {**head, "usage": None} if with_usage else head
    try:
        async with aclosing(watch(asked)) as pieces:
            async for piece in pieces:
                n_drawn += len(piece.tokens)
                unfolding = texts.get(piece.index)
                if unfolding is None:
                    unfolding = texts[piece.index] = Unfolding(asked.tokenizer, asked.stops)
                    if opening is not None:
                        yield _line({**plain, "choices": [{"index": piece.index, **opening}]})
                if (ended := piece.ended) is None:
                    text, reason = unfolding.push(_said(piece, asked)), None
                else:
                    whole, reason = text_of(
                        asked.tokenizer, ended, stops=asked.stops, ends=asked.ends
                    )
                    text = unfolding.end(whole)
                yield _line({**plain, "choices": [tell(piece, text, reason)]})
    except PlaitError as error:
        message = {"message": writable(str(error)), "type": "server_error", "code": error.code}
        yield _line({"error": {**message, "param": None}})
        return
    if with_usage:
        yield _line({**head, "choices": [], "usage": usage(asked, n_drawn)})
    yield DONE


def _said(piece: Piece, asked: Asked) -> list[int]:
    return [t for t in piece.tokens if t not in asked.ends]


def _line(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
