"""Scoring: what a request asks about the tokens of its prompt, answered all at once when its first
token is drawn."""

from dataclasses import replace

from plait.core.operations import Alternatives
from plait.engines.scripted import draw, policy
from plait.engines.scripted.policy import Array
from plait.engines.scripted.sequences import Group


def score_prompt(group: Group, vocab_size: int) -> None:
    """Answer everything that is asked of the prompt."""
    op = group.op
    group.n_scored = len(op.prompt) - 1
    if not (op.prompt_logprobs or op.prompt_targets or op.prompt_draws):
        return
    logits = [policy.logits(vocab_size, prev, group.adapter) for prev in op.prompt[:-1]]
    seen = [policy.log_softmax(logits_V) for logits_V in logits]
    if op.prompt_logprobs:
        group.prompt_logprobs = tuple(
            float(logprobs_V[token]) for logprobs_V, token in zip(seen, op.prompt[1:], strict=True)
        )
        k = op.topk_logprobs
        group.prompt_topk = tuple(policy.likeliest(v, k) for v in seen) if k else ()
    if op.prompt_targets:
        group.prompt_targets = tuple(
            tuple(float(logprobs_V[token]) for token in ids)
            for logprobs_V, ids in zip(seen, op.prompt_targets, strict=True)
        )
    if op.prompt_draws:
        rows = zip(logits, seen, strict=True)
        group.prompt_draws = tuple(_drawn(group, i, *row) for i, row in enumerate(rows))


def _drawn(group: Group, row: int, logits_V: Array, logprobs_V: Array) -> Alternatives:
    """By temperature alone; the numbers of the draws are no sample's."""
    params = replace(group.op.params, top_k=0, top_p=1.0)
    tokens = [
        draw.choose(logits_V, params, draw.uniform(params.seed, -1 - number, row))
        for number in range(group.op.prompt_draws)
    ]
    return tuple((token, float(logprobs_V[token])) for token in tokens)
