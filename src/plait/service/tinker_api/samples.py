"""Samples: from the JSON of a sample request, and to protobuf.

What is asked for and cannot be given is refused, never left out. ``stop`` has three meanings: if
absent, the model's own end tokens stop; a list adds to them; an empty list lets nothing stop but
the length. A request without a seed gets one made of its sampler and number: asked again, the
same.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from plait.core.errors import RequestError
from plait.core.operations import (
    MAX_TOPK,
    Ranked,
    SampleResult,
    SamplingParams,
    StopReason,
)
from plait.service.tinker_api import alternatives, schema
from plait.service.tinker_api.bodies import SampleBody, SamplingParamsBody
from plait.service.work import SampleWork

NO_TOKEN, NO_LOGPROB = 0, -99999.0
"""What fills a matrix of likeliest tokens where there are none."""


def read(body: SampleBody, *, max_context: int) -> SampleWork:
    """The work; RequestError names what is wrong or not supported."""
    prompt: list[int] = []
    for chunk in body.prompt.chunks:
        if chunk.type != "encoded_text":
            raise RequestError(
                f"a prompt chunk of {chunk.type}: this server takes text tokens only"
            )
        prompt += chunk.tokens
    last = body.prompt_logprobs_last_n
    if last is not None and not (body.prompt_logprobs and 1 <= last < len(prompt)):
        raise RequestError(
            f"prompt_logprobs_last_n is {last}: it needs prompt_logprobs, and 1 to one less than "
            "the prompt's tokens"
        )
    for name, k in (
        ("topk_prompt_logprobs", body.topk_prompt_logprobs),
        ("topk_sample_logprobs", body.topk_sample_logprobs),
    ):
        if not 0 <= k <= MAX_TOPK:
            raise RequestError(f"{name} is {k}: give 0 to {MAX_TOPK}")
    alternatives.check_draws(body.prompt_alt_tokens_k)
    targets = None
    if (told := body.target_prompt_logprobs) is not None:
        targets = alternatives.read_targets(told, max(0, len(prompt) - 1))
    return SampleWork(
        prompt=tuple(prompt),
        n=body.num_samples,
        params=_params(body, body.sampling_params, max_context - len(prompt)),
        prompt_logprobs=bool(body.prompt_logprobs),
        topk_prompt=body.topk_prompt_logprobs,
        topk_sample=body.topk_sample_logprobs,
        prompt_last=last,
        targets=targets,
        prompt_draws=body.prompt_alt_tokens_k,
    )


def _params(body: SampleBody, told: SamplingParamsBody, room: int) -> SamplingParams:
    stop = [told.stop] if isinstance(told.stop, str) else told.stop
    seed = told.seed
    if seed is None:
        key = f"{body.sampling_session_id}:{body.seq_id}".encode()
        seed = int.from_bytes(blake2b(key, digest_size=7).digest())
    return SamplingParams(
        max_tokens=max(1, room) if told.max_tokens is None else told.max_tokens,
        temperature=told.temperature,
        top_k=max(0, told.top_k),
        top_p=told.top_p,
        stop=tuple(s for s in stop or () if isinstance(s, str)),
        stop_tokens=tuple(s for s in stop or () if isinstance(s, int)),
        ignore_eos=stop is not None and not stop,
        seed=seed,
    )


def write(work: SampleWork, answer: SampleResult) -> bytes:
    """The SampleResponse."""
    out = schema.SampleResponse()
    for sample in answer.samples:
        sequence = out.sequences.add()
        stopped = sample.stop_reason is StopReason.STOP
        sequence.stop_reason = schema.STOPPED if stopped else schema.AT_LENGTH
        sequence.tokens = np.asarray(sample.tokens, dtype="<i4").tobytes()
        sequence.logprobs = np.asarray(sample.logprobs, dtype="<f4").tobytes()
        if work.topk_sample:
            _rank(sequence.topk_sampled_logprobs, sample.topk, work.topk_sample)
    hidden = 1
    if work.prompt_last is not None:
        hidden = len(work.prompt) - work.prompt_last
    if work.prompt_logprobs:
        scored = answer.prompt_logprobs[hidden - 1 :]
        row = np.full(len(work.prompt), np.nan, dtype="<f4")
        row[hidden : hidden + len(scored)] = scored
        out.prompt_logprobs = row.tobytes()
    if work.topk_prompt:
        ranked: list[Ranked] = [()] * hidden
        ranked += answer.prompt_topk[hidden - 1 :]
        _rank(out.topk_prompt_logprobs, ranked, work.topk_prompt)
    if work.targets is not None:
        alternatives.write_targets(out.target_prompt_logprobs, work.targets, answer.prompt_targets)
    if work.prompt_draws:
        alternatives.write_draws(out.prompt_alt_tokens, answer.prompt_draws, work.prompt_draws)
    return bytes(out.SerializeToString())


def _rank(message: Any, rows: Sequence[Ranked], k: int) -> None:
    tokens = np.full((len(rows), k), NO_TOKEN, dtype="<i4")
    logprobs = np.full((len(rows), k), NO_LOGPROB, dtype="<f4")
    for i, row in enumerate(rows):
        for j, (token, logprob) in enumerate(row[:k]):
            tokens[i, j], logprobs[i, j] = token, logprob
    message.token_ids, message.logprobs = tokens.tobytes(), logprobs.tobytes()
    message.k, message.length = k, len(rows)


def as_json(body: bytes) -> dict[str, Any]:
    """A SampleResponse as older clients read it."""
    out = schema.SampleResponse.FromString(body)
    sequences = [
        {
            "stop_reason": "stop" if sequence.stop_reason == schema.STOPPED else "length",
            "tokens": np.frombuffer(sequence.tokens, dtype="<i4").tolist(),
            "logprobs": np.frombuffer(sequence.logprobs, dtype="<f4").tolist(),
        }
        for sequence in out.sequences
    ]
    told: dict[str, Any] = {"type": "sample", "sequences": sequences}
    if out.prompt_logprobs:
        row = np.frombuffer(out.prompt_logprobs, dtype="<f4").tolist()
        told["prompt_logprobs"] = [None if value != value else value for value in row]
    if out.HasField("topk_prompt_logprobs"):
        told["topk_prompt_logprobs"] = _ranked_json(out.topk_prompt_logprobs)
    if out.HasField("target_prompt_logprobs"):
        told["target_prompt_logprobs"] = alternatives.as_json(out.target_prompt_logprobs)
    if out.HasField("prompt_alt_tokens"):
        told["prompt_alt_tokens"] = {
            "tokens": alternatives.as_json(out.prompt_alt_tokens.tokens),
            "logprobs": alternatives.as_json(out.prompt_alt_tokens.logprobs),
        }
    return told


def _ranked_json(topk: Any) -> list[list[tuple[int, float]] | None]:
    shape = (topk.length, topk.k)
    tokens = np.frombuffer(topk.token_ids, dtype="<i4").reshape(shape).tolist()
    logprobs = np.frombuffer(topk.logprobs, dtype="<f4").reshape(shape).tolist()
    rows = [
        [(token, p) for token, p in zip(*row, strict=True) if p != NO_LOGPROB]
        for row in zip(tokens, logprobs, strict=True)
    ]
    return [row or None for row in rows]
