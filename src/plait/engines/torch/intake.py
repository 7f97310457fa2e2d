"""Intake: from a ``Sample`` operation to sequences; what cannot be right is refused here.

RequestError for arguments that are wrong, CapacityError for what could never run on this engine.
"""

import math
from itertools import chain

from plait.core.errors import CapacityError, RequestError
from plait.core.operations import MAX_NAMED, MAX_TOPK, Sample
from plait.engines.protocol import ModelShape
from plait.engines.torch.blocks import Policy
from plait.engines.torch.noise import stream
from plait.engines.torch.sequence import Request, Sequence
from plait.engines.torch.stops import StopScan
from plait.models.tokenizer import Tokenizer


class Intake:
    """Makes requests; remembers which prompts are alive so that equal ones can share a prefill."""

    def __init__(self, shape: ModelShape, tokenizer: Tokenizer) -> None:
        self._shape = shape
        self._tokenizer = tokenizer
        self._eos = frozenset(tokenizer.eos_ids)
        self._groups: dict[tuple[Policy, tuple[int, ...]], tuple[int, int]] = {}
        self._n_groups = 0
        self._n_arrived = 0

    def request(self, op: Sample, *, max_tokens_cached: int) -> Request:
        """The sequences of ``op``; a sample may cache at most ``max_tokens_cached`` tokens."""
        check(op, self._shape)
        need = len(op.prompt) + op.params.max_tokens - 1
        if need > max_tokens_cached:
            raise CapacityError(
                f"sample {op.op_id} may need {need} cached tokens and the KV cache holds "
                f"{max_tokens_cached}: shorten it or give the engine more blocks"
            )
        policy = (op.run_id, op.version)
        ends = frozenset(op.params.stop_tokens)
        request = Request(
            op=op, policy=policy, ends=ends if op.params.ignore_eos else ends | self._eos
        )
        group = self._enter_group((policy, op.prompt), op.n)
        for i in range(op.n):
            self._n_arrived += 1
            index = op.first_index + i
            request.sequences.append(
                Sequence(
                    request=request,
                    index=index,
                    arrival=self._n_arrived,
                    group=group,
                    stream=stream(op.params.seed, index),
                    tokens=list(op.prompt),
                    n_prompt=len(op.prompt),
                    max_tokens=op.params.max_tokens,
                    scan=StopScan(self._tokenizer, op.params.stop) if op.params.stop else None,
                )
            )
        return request

    def leave(self, request: Request) -> None:
        """The request is over."""
        key = (request.policy, request.op.prompt)
        group, n = self._groups[key]
        self._groups[key] = (group, n - request.op.n)
        if n == request.op.n:
            del self._groups[key]

    def _enter_group(self, key: tuple[Policy, tuple[int, ...]], n: int) -> int:
        self._n_groups += 1
        group, alive = self._groups.get(key, (self._n_groups, 0))
        self._groups[key] = (group, alive + n)
        return group


def check(op: Sample, shape: ModelShape) -> None:
    """RequestError or CapacityError if ``op`` makes no sense for a model of this shape."""
    p = op.params
    named = tuple(chain.from_iterable(op.prompt_targets))
    problems = (
        (not op.prompt, "has an empty prompt: give at least one token"),
        (op.n < 1, f"asks for {op.n} samples: n must be at least 1"),
        (op.first_index < 0, f"starts at index {op.first_index}: it must not be negative"),
        (p.max_tokens < 1, f"asks for {p.max_tokens} tokens: max_tokens must be at least 1"),
        (
            not (math.isfinite(p.temperature) and p.temperature >= 0),
            f"has temperature {p.temperature}: give a finite number from 0 (greedy) up",
        ),
        (p.top_k < 0, f"has top_k {p.top_k}: give a positive number, or 0 for off"),
        (not 0 < p.top_p <= 1, f"has top_p {p.top_p}: give a number above 0 up to 1 (off)"),
        ("" in p.stop, "has an empty stop string: leave it out"),
        (
            not 0 <= op.topk_logprobs <= min(MAX_TOPK, shape.vocab_size),
            f"asks for the {op.topk_logprobs} likeliest tokens: give 0 … {MAX_TOPK}",
        ),
        (
            not 0 <= op.prompt_draws <= MAX_TOPK,
            f"has {op.prompt_draws} tokens drawn at each of the prompt's: give 0 … {MAX_TOPK}",
        ),
        (
            len(op.prompt_targets) not in (0, len(op.prompt) - 1),
            f"has prompt_targets in {len(op.prompt_targets)} rows: give one for each token of the "
            f"prompt but the first, {len(op.prompt) - 1}",
        ),
        (
            bool(op.prompt_targets) and not 1 <= len(named) <= MAX_NAMED,
            f"names {len(named)} prompt_targets: give 1 … {MAX_NAMED}",
        ),
    )
    for wrong, why in problems:
        if wrong:
            raise RequestError(f"sample {op.op_id} {why}")
    groups = (("prompt", op.prompt), ("stop_tokens", p.stop_tokens), ("prompt_targets", named))
    for what, ids in groups:
        if ids and not (min(ids) >= 0 and max(ids) < shape.vocab_size):
            bad = next(i for i in ids if not 0 <= i < shape.vocab_size)
            raise RequestError(
                f"sample {op.op_id}: {what} holds id {bad}, outside 0 … {shape.vocab_size - 1}"
            )
    if len(op.prompt) + p.max_tokens > shape.max_context:
        raise CapacityError(
            f"sample {op.op_id}: {len(op.prompt)} prompt tokens and {p.max_tokens} new ones exceed "
            f"the model's context of {shape.max_context}"
        )
