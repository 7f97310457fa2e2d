"""Scoring: log-probs of prompt tokens, in blocks of rows, so that a long prompt's logits never lie
in memory all at once. Which rows are due is ``batch``'s to say.
"""

from collections.abc import Callable, Sequence
from itertools import islice

import torch

from plait.engines.torch.batch import Scored
from plait.engines.torch.sampling import score
from plait.engines.torch.sequence import Request

BLOCK_ROWS = 64
"""Rows whose logits are made at a time: as many as a step of decoding has, so scoring takes no more
memory than that."""


def score_prompts(
    scored: Sequence[Scored], logits_of: Callable[[list[int]], torch.Tensor]
) -> list[Request]:
    """Append what the rows tell to their requests; returns those whose logits are not finite."""
    due = ((s.request, s.row + i, t) for s in scored for i, t in enumerate(s.targets))
    sick = []
    while block := list(islice(due, BLOCK_ROWS)):
        requests, rows, targets = zip(*block, strict=True)
        found = score(logits_of(list(rows)), targets, [r.op.topk_logprobs for r in requests])
        results = zip(found.logprobs_R, found.topk_R, found.ok_R, strict=True)
        for request, (logprob, topk, ok) in zip(requests, results, strict=True):
            if not ok:
                request.failure = (
                    f"run {request.policy[0]}, version {request.policy[1]}: logits are not finite "
                    f"in the prompt; lower the learning rate or go back a version"
                )
                sick.append(request)
            request.prompt_logprobs.append(logprob)
            if request.op.topk_logprobs:
                request.prompt_topk.append(topk)
    return sick
