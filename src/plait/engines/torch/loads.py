"""Loads: work for an engine to be timed with. Random tokens from a seed, real weights.

Decoding is done in rounds of ``NEW`` tokens so that contexts keep their length; a round's prompts
are the same, so that the cache has them and a round begins with one step of a token per row.
"""

import time
from collections.abc import Callable, Iterator

import torch

from plait.core.ids import OpId, RunId
from plait.core.operations import AdamParams, Datum, Sample, SamplingParams
from plait.engines.protocol import RolloutEngine, TrainEngine

NEW = 12
"""Tokens: enough decode steps to leave the prefill behind, few enough for a small machine."""
RUN = RunId("calibrate")


def add_samples(
    rollout: RolloutEngine,
    rows: int,
    prompt_tokens: int,
    *,
    new: int = NEW,
    seed: int | None = None,
    version: int | None = None,
) -> None:
    """``rows`` requests, each with a prompt of its own; the same ones for the same ``seed``."""
    seed = rows if seed is None else seed
    generator = torch.Generator().manual_seed(seed)
    params = SamplingParams(max_tokens=new, seed=seed, ignore_eos=True)
    most = rollout.shape.vocab_size - 3
    for i in range(rows):
        prompt = torch.randint(3, most, (prompt_tokens,), generator=generator)
        rollout.add(
            Sample(
                op_id=op_id(i),
                run_id=RUN,
                version=version,
                prompt=tuple(prompt.tolist()),
                params=params,
            )
        )


def op_id(row: int) -> OpId:
    """The id of one of the requests in flight."""
    return OpId(f"calibrate/{row}")


def training_data(vocab_size: int, seqs: int, length: int) -> list[Datum]:
    """``seqs`` sequences of which the second half is trained on."""
    generator = torch.Generator().manual_seed(0)
    data = []
    for _ in range(seqs):
        tokens = torch.randint(3, vocab_size - 3, (length + 1,), generator=generator).tolist()
        data.append(
            Datum(
                input_tokens=tokens[:-1],
                target_tokens=tokens[1:],
                mask=[i >= length // 2 for i in range(length)],
                inputs={"weights": [1.0] * length},
            )
        )
    return data


Timed = Iterator[tuple[float, float]]
"""When each unit of work began and ended; without end: who asks stops asking."""


def decode(
    rollout: RolloutEngine,
    rows: int,
    context: int,
    *,
    version: int | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Timed:
    """Decode steps of all ``rows``."""
    while True:
        add_samples(rollout, rows, context, version=version)
        while rollout.has_work():
            t0 = now()
            step = rollout.step()
            if step.n_tokens == rows and not step.n_prefill_tokens:
                yield t0, now()


def prefill(
    rollout: RolloutEngine, tokens: int, *, now: Callable[[], float] = time.monotonic
) -> Timed:
    """Steps that compute ``tokens`` tokens of a prompt that was never seen before."""
    seed = 0
    while True:
        seed += 1
        add_samples(rollout, 1, tokens, new=1, seed=seed)
        while rollout.has_work():
            t0 = now()
            step = rollout.step()
            if step.n_prefill_tokens >= tokens:
                yield t0, now()


def train(
    engine: TrainEngine,
    vocab_size: int,
    seqs: int,
    length: int,
    *,
    now: Callable[[], float] = time.monotonic,
) -> Timed:
    """Updates: a gradient and an optimizer step."""
    data = training_data(vocab_size, seqs, length)
    while True:
        t0 = now()
        for _ in engine.forward_backward(RUN, data, "cross_entropy", {}):
            pass
        engine.optim_step(RUN, AdamParams(learning_rate=0.0))
        yield t0, now()


def reference(
    engine: TrainEngine,
    vocab_size: int,
    seqs: int,
    length: int,
    *,
    now: Callable[[], float] = time.monotonic,
) -> Timed:
    """Log-probs of the base model."""
    data = training_data(vocab_size, seqs, length)
    while True:
        t0 = now()
        for _ in engine.forward(RUN, data, adapter=False):
            pass
        yield t0, now()
