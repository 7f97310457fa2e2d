"""B6: two runs' updates in one pass against one after the other, small batches.

Ranks 8 and 16; for each run one prompt of 34 tokens with a few answers. An update is the gradient
and its optimizer step. Both ways on one engine, in turn; medians. What a larger batch gives is
shown beside it: from some size on a pass alone is as fast, and the dispatch policy leaves runs
apart.
"""

import time
from collections.abc import Sequence
from statistics import median

import torch

from benchmarks.engine.decode import THREADS, model_dir
from benchmarks.engine.training import datum, groups
from benchmarks.figure import Measured
from benchmarks.live.launches import spread
from plait.core.ids import OpId, RunId
from plait.core.operations import AdamParams, ForwardBackward
from plait.core.runs import LoraSpec
from plait.engines.torch.trainer import TorchTrain
from plait.policies.company import MOST_ROWS

AT_LEAST = 1.15
REPEATS = 5
RANKS = (8, 16)
PROMPT = 34
SMALL = (2, 32)
"""Answers and their tokens: of what counts."""
SHAPES = ((1, 16), SMALL, (4, 32))
ADAM = AdamParams(learning_rate=1e-5)


def measure() -> Measured:
    """Time one after the other over time in one pass."""
    torch.set_num_threads(THREADS)
    engine = TorchTrain(model_dir())
    for rank in RANKS:
        engine.create(_run(rank), LoraSpec(rank=rank, seed=rank))
    ratios: dict[tuple[int, int], list[float]] = {shape: [] for shape in SHAPES}
    passes = {shape: [_gradient(rank, *shape) for rank in RANKS] for shape in SHAPES}
    for i in range(REPEATS + 1):
        for shape, ops in passes.items():
            pair = apart(engine, ops), together(engine, ops)
            if i:  # the first warms up
                ratios[shape].append(pair[0] / pair[1])
    value = median(ratios[SMALL])
    return Measured(
        value=value,
        ok=value >= AT_LEAST,
        spread=spread(ratios[SMALL]),
        detail={
            "rows_of_a_pass_at_most": MOST_ROWS,
            **{
                f"{n} x {PROMPT}+{new}": {
                    "rows_each": PROMPT - 1 + n * new,
                    "ratio": median(found),
                    "spread": spread(found),
                }
                for (n, new), found in ratios.items()
            },
        },
    )


def apart(engine: TorchTrain, ops: Sequence[ForwardBackward]) -> float:
    """Seconds of the updates one after the other."""
    start = time.perf_counter()
    for op in ops:
        for _ in engine.forward_backward(op.run_id, op.data, op.loss, op.loss_config):
            pass
        engine.optim_step(op.run_id, ADAM)
    return time.perf_counter() - start


def together(engine: TorchTrain, ops: Sequence[ForwardBackward]) -> float:
    """Seconds of the same updates with their gradients in one pass."""
    start = time.perf_counter()
    for _ in engine.forward_backward_many(ops):
        pass
    for op in ops:
        engine.optim_step(op.run_id, ADAM)
    return time.perf_counter() - start


def _run(rank: int) -> RunId:
    return RunId(f"rank-{rank}")


def _gradient(rank: int, samples: int, new: int) -> ForwardBackward:
    tokens = groups(1, samples, PROMPT, new)
    return ForwardBackward(
        op_id=OpId(f"{_run(rank)}/1"),
        run_id=_run(rank),
        seq=1,
        data=tuple(datum(t, PROMPT, (-1.0) ** i) for i, t in enumerate(tokens)),
        loss="importance_sampling",
    )
