"""Asked: one request of the OpenAI API as samples of a lane: a piece of work for each prompt."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from plait.core.errors import ModelError, RequestError
from plait.core.operations import SampleResult, SamplingParams
from plait.models.tokenizer import Tokenizer
from plait.service.openai_api.catalog import Served
from plait.service.openai_api.schema import ChatRequest, CompletionRequest, Sampling
from plait.service.sample_lane import SampleLane
from plait.service.work import SampleWork

DEFAULT_TOKENS = 16
"""Of a plain completion that does not say how many: OpenAI's number. A chat goes on to the end of
the context."""


CHARS = 64
"""Characters of a token, on average, that no text has more of: what is longer than so many for each
token that fits is refused unread. Splitting a text holds everybody up, for seconds per megabyte."""


class TooLong(RequestError):
    """Prompt and answer do not fit together."""

    code = "context_length_exceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be drawn, and what is needed to tell it."""

    served: Served
    lane: SampleLane
    tokenizer: Tokenizer
    works: tuple[SampleWork, ...]
    stops: tuple[str, ...]
    ends: frozenset[int]
    """Tokens that end a sample and are no text of it."""

    async def draw(self) -> tuple[SampleResult, ...]:
        """All results, in the prompts' order; if one fails, or the caller goes, none goes on."""
        drawn = [
            asyncio.create_task(self.lane.sample(self.served.source, work)) for work in self.works
        ]
        try:
            return tuple(await asyncio.gather(*drawn))
        finally:
            for task in drawn:
                task.cancel()
            await asyncio.gather(*drawn, return_exceptions=True)


async def chat(
    body: ChatRequest, served: Served, lane: SampleLane, tokenizer: Tokenizer, seed: int
) -> Asked:
    """A conversation, by the model's template."""
    messages = [
        {"role": "system" if m.role == "developer" else m.role, "content": m.text}
        for m in body.messages
    ]
    _check_length(sum(len(m["content"]) for m in messages), lane)
    try:
        prompt = await asyncio.to_thread(tokenizer.chat, messages)
    except ModelError as error:
        raise RequestError(str(error)) from error
    most = body.max_completion_tokens or body.max_tokens
    k = (body.top_logprobs or 0) if body.logprobs else 0
    return _asked(body, served, lane, tokenizer, [prompt], most=most, k=k, seed=seed)


async def completion(
    body: CompletionRequest, served: Served, lane: SampleLane, tokenizer: Tokenizer, seed: int
) -> Asked:
    """Texts, or tokens, as they are."""

    def tokens() -> list[tuple[int, ...]]:
        return [tokenizer.encode(p) if isinstance(p, str) else tuple(p) for p in body.prompts]

    for text in body.prompts:
        if isinstance(text, str):
            _check_length(len(text), lane)
    prompts = await asyncio.to_thread(tokens)
    most = DEFAULT_TOKENS if body.max_tokens is None else max(1, body.max_tokens)
    return _asked(
        body,
        served,
        lane,
        tokenizer,
        prompts,
        most=most,
        k=body.logprobs or 0,
        score=bool(body.echo) and body.logprobs is not None,
        seed=seed,
    )


def _check_length(n_chars: int, lane: SampleLane) -> None:
    """TooLong if a text is beyond what fits, however it is split."""
    if n_chars > (most := lane.longest * CHARS):
        raise TooLong(
            f"the prompt has {n_chars} characters: {lane.longest} tokens fit here, and at most "
            f"{most} characters are read for them"
        )


def _asked(
    body: Sampling,
    served: Served,
    lane: SampleLane,
    tokenizer: Tokenizer,
    prompts: Sequence[tuple[int, ...]],
    *,
    most: int | None,
    k: int,
    score: bool = False,
    seed: int,
) -> Asked:
    works = []
    for prompt in prompts:
        if not prompt:
            raise RequestError("the prompt is empty: give at least one token")
        room = lane.longest - len(prompt)
        if room < (most or 1):
            raise TooLong(
                f"the prompt has {len(prompt)} tokens, the answer up to {most or 1}: together at "
                f"most {lane.longest} fit here"
            )
        params = SamplingParams(
            max_tokens=most or room,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            top_k=max(0, body.top_k or 0),
            stop=body.stops,
            stop_tokens=tuple(body.stop_token_ids or ()),
            ignore_eos=body.ignore_eos,
            seed=seed if body.seed is None else body.seed,
        )
        works.append(
            SampleWork(
                prompt=prompt,
                n=body.n or 1,
                params=params,
                prompt_logprobs=score,
                topk_prompt=k if score else 0,
                topk_sample=k,
            )
        )
    ends = frozenset(body.stop_token_ids or ())
    return Asked(
        served=served,
        lane=lane,
        tokenizer=tokenizer,
        works=tuple(works),
        stops=body.stops,
        ends=ends if body.ignore_eos else ends | frozenset(tokenizer.eos_ids),
    )
