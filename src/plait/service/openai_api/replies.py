"""Replies: what the OpenAI API answers with, whole and in pieces."""

from collections.abc import Sequence
from typing import Any

from plait.core.operations import Ranked, Sampled, SampleResult
from plait.models.tokenizer import Tokenizer
from plait.service.openai_api.asked import Asked
from plait.service.openai_api.text import INCOMPLETE, text_of

Json = dict[str, Any]

LEAST = -9999.0
"""OpenAI's number for what is as good as impossible; JSON has no infinity."""


def usage(asked: Asked, n_drawn: int) -> Json:
    """Tokens in and out."""
    n_prompt = sum(len(work.prompt) for work in asked.works)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_drawn,
        "total_tokens": n_prompt + n_drawn,
    }


def n_drawn(results: Sequence[SampleResult]) -> int:
    return sum(len(s.tokens) for result in results for s in result.samples)


def chat_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[int], logprobs: Sequence[float], topk: Sequence[Ranked]
) -> Json:
    """Log-probs of a chat's tokens, each with the likeliest in its place."""

    def one(token: int, logprob: float) -> Json:
        text = tokenizer.decode([token], skip_special=False)
        partial = INCOMPLETE in text
        return {
            "token": text,
            "logprob": max(logprob, LEAST),
            "bytes": None if partial else list(text.encode()),
        }

    ranked = [*topk, *[()] * (len(tokens) - len(topk))]
    content = [
        one(token, logprob) | {"top_logprobs": [one(t, p) for t, p in likeliest]}
        for token, logprob, likeliest in zip(tokens, logprobs, ranked, strict=True)
    ]
    return {"content": content, "refusal": None}


def text_logprobs(
    tokenizer: Tokenizer,
    tokens: Sequence[int],
    logprobs: Sequence[float | None],
    topk: Sequence[Ranked | None],
    offset: int = 0,
) -> Json:
    """Log-probs of a completion's tokens, as columns; offsets are of the tokens' own texts."""

    def text(token: int) -> str:
        return tokenizer.decode([token], skip_special=False)

    texts, offsets = [text(t) for t in tokens], []
    for piece in texts:
        offsets.append(offset)
        offset += len(piece)
    tops = [None if r is None else {text(t): max(p, LEAST) for t, p in r} for r in topk]
    return {
        "tokens": texts,
        "token_logprobs": [None if p is None else max(p, LEAST) for p in logprobs],
        "top_logprobs": tops if any(tops) else None,
        "text_offset": offsets,
    }


def chat_reply(
    asked: Asked, results: Sequence[SampleResult], *, logprobs: bool, ids: bool, head: Json
) -> Json:
    """A whole answer of the chat endpoint."""
    choices = []
    for index, sampled in enumerate(results[0].samples):
        text, reason = text_of(asked.tokenizer, sampled, stops=asked.stops, ends=asked.ends)
        choice: Json = {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": chat_logprobs(
                asked.tokenizer, sampled.tokens, sampled.logprobs, sampled.topk
            )
            if logprobs
            else None,
            "finish_reason": reason,
        }
        choices.append(choice | ({"token_ids": list(sampled.tokens)} if ids else {}))
    prompt = {"prompt_token_ids": list(asked.works[0].prompt)} if ids else {}
    body = {**head, "choices": choices, "usage": usage(asked, n_drawn(results)), **prompt}
    return {"object": "chat.completion", **body}


def text_reply(
    asked: Asked,
    results: Sequence[SampleResult],
    *,
    logprobs: bool,
    ids: bool,
    echo: bool,
    drawn: bool,
    head: Json,
) -> Json:
    """A whole answer of the plain endpoint; ``drawn`` is false where only the prompt was to be
    scored."""
    choices: list[Json] = []
    for work, result in zip(asked.works, results, strict=True):
        before = asked.tokenizer.decode(work.prompt) if echo else ""
        for sampled in result.samples:
            text, reason = text_of(asked.tokenizer, sampled, stops=asked.stops, ends=asked.ends)
            choice: Json = {
                "index": len(choices),
                "text": before + text if drawn else before,
                "logprobs": _scored(asked, work.prompt, result, sampled, echo=echo, drawn=drawn)
                if logprobs
                else None,
                "finish_reason": reason if drawn else "length",
            }
            if ids:
                choice["token_ids"] = list(sampled.tokens) if drawn else []
                choice["prompt_token_ids"] = list(work.prompt)
            choices.append(choice)
    n = n_drawn(results) if drawn else 0
    return {"object": "text_completion", **head, "choices": choices, "usage": usage(asked, n)}


def _scored(
    asked: Asked,
    prompt: Sequence[int],
    result: SampleResult,
    sampled: Sampled,
    *,
    echo: bool,
    drawn: bool,
) -> Json:
    tokens: list[int] = []
    logprobs: list[float | None] = []
    topk: list[Ranked | None] = []
    if echo:
        tokens += prompt
        logprobs += [None, *result.prompt_logprobs]
        topk += [None, *(result.prompt_topk or [None] * len(result.prompt_logprobs))]
    if drawn:
        tokens += sampled.tokens
        logprobs += sampled.logprobs
        topk += sampled.topk or [None] * len(sampled.tokens)
    return text_logprobs(asked.tokenizer, tokens, logprobs, topk)
