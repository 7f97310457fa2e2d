"""Scoring: what a prompt's rows say of the tokens behind them, in blocks of rows, so that a long
prompt's logits never lie in memory all at once. Which rows are due is ``batch``'s to say, what is
asked of each ``prompted``'s.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import torch

from plait.engines.torch.batch import Scored
from plait.engines.torch.noise import draw_keys
from plait.engines.torch.prompted import Prompted
from plait.engines.torch.sampling import Rows
from plait.engines.torch.sequence import Request

BLOCK_ROWS = 64
"""Rows whose logits are made at a time: as many as a step of decoding has, so scoring takes no more
memory than that."""


def score_prompts(
    scored: Sequence[Scored], logits_of: Callable[[list[int]], torch.Tensor]
) -> list[Request]:
    """Have the rows tell their requests; returns those whose logits are not finite."""
    due = ((s.request, s.at + i, i) for s in scored for i in s.rows if s.request.prompt.asks(i))
    sick = []
    while block := list(islice(due, BLOCK_ROWS)):
        requests, at, rows = zip(*block, strict=True)
        ok_R = _tell(logits_of(list(at)), [r.prompt for r in requests], rows)
        for request, ok in zip(requests, ok_R, strict=True):
            if not ok:
                request.failure = (
                    f"run {request.policy[0]}, version {request.policy[1]}: logits are not finite "
                    f"in the prompt; lower the learning rate or go back a version"
                )
                sick.append(request)
    for s in scored:
        s.request.prompt.n_scored = s.rows.stop
    return sick


def _tell(
    logits_RV: torch.Tensor, prompts_R: Sequence[Prompted], places_R: Sequence[int]
) -> list[bool]:
    """Tell each prompt what it asks of its row; which rows were finite."""
    warmth = [p.op.params.temperature if p.streams else 1.0 for p in prompts_R]
    rows = Rows(logits_RV, warmth)
    own = [p.op.prompt[i + 1] for p, i in zip(prompts_R, places_R, strict=True)]
    found = rows.draws(own, [p.n_ranked for p in prompts_R])
    named = _named(rows, prompts_R, places_R)
    drawn = _drawn(rows, prompts_R, places_R)
    told = zip(prompts_R, places_R, found.logprobs_R, found.topk_R, strict=True)
    for p, i, logprob, topk in told:
        if p.op.prompt_logprobs:
            p.logprobs.append(logprob)
        if p.n_ranked:
            p.topk.append(topk)
        if ids := p.named(i):
            p.targets[i] = tuple(islice(named, len(ids)))
        if p.streams:
            p.draws.append(tuple(islice(drawn, len(p.streams))))
        p.n_scored = i + 1
    return found.ok_R


def _named(rows: Rows, prompts_R: Sequence[Prompted], places_R: Sequence[int]) -> Iterator[float]:
    """Log-probs of the tokens that the prompts name, row after row."""
    ids_R = [p.named(i) for p, i in zip(prompts_R, places_R, strict=True)]
    of = [row for row, ids in enumerate(ids_R) for _ in ids]
    return iter(rows.logprobs(of, [token for ids in ids_R for token in ids]))


def _drawn(
    rows: Rows, prompts_R: Sequence[Prompted], places_R: Sequence[int]
) -> Iterator[tuple[int, float]]:
    """Tokens that are drawn for the prompts, with their log-probs, row after row."""
    of = [row for row, p in enumerate(prompts_R) for _ in p.streams]
    if not of:
        return iter(())
    streams = [start for p in prompts_R for start in p.streams]
    tokens = rows.drawn(of, draw_keys(streams, [places_R[row] for row in of]))
    return zip(tokens, rows.logprobs(of, tokens), strict=True)
