"""B10: in deterministic mode the trainer's log-probs are the sampler's, bit for bit.

SmolLM2, groups that share their prompts, a trained adapter; short and long sequences. The same
samples in the normal mode beside it: the gap that the mode closes.
"""

import numpy as np

from benchmarks.engine.b8_deterministic import MINE, data_of, draw, engines, requests
from benchmarks.figure import Measured

LONG = 170
"""New tokens of the long sequences: their attention takes another way than the short ones'."""


def measure() -> Measured:
    """Share of scored tokens whose log-prob has the same bits on both sides."""
    found = {name: _compare(exact=name == "deterministic") for name in ("deterministic", "normal")}
    share = found["deterministic"]["equal"]
    return Measured(value=share, ok=share == 1.0, detail=found)


def _compare(*, exact: bool) -> dict[str, float]:
    with engines(exact=exact) as (rollout, train):
        vocab_size = rollout.shape.vocab_size
        ops = [*requests(MINE, vocab_size, n=4), *requests(MINE, vocab_size, n=5, new=LONG)[4:]]
        data = data_of(ops, draw(rollout, ops))
        work = train.forward_backward(MINE, data, "ppo", {})
        while True:
            try:
                next(work)
            except StopIteration as end:
                result = end.value
                break
    sampled = np.concatenate([np.array(d.inputs["logprobs"])[list(d.mask)] for d in data])
    trained = np.concatenate(result.logprobs)
    gap = np.abs(sampled.astype(np.float32) - trained.astype(np.float32))
    return {
        "tokens": len(gap),
        "equal": float((gap == 0).mean()),
        "largest": float(gap.max()),
        "kl": result.metrics["kl_sampler:mean"],
    }
