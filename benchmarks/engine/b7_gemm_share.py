"""B7: share of the machine's GEMM rate that decode and training reach.

Counted is the base model's useful work alone: two FLOPs per weight and token forward, the same
again for the gradient by the activations (the base is frozen). Adapters, attention and everything
else is overhead.
"""

from statistics import median

import torch

from benchmarks.engine.decode import THREADS, gemm_flops, model_dir
from benchmarks.engine.decode import ours as decode
from benchmarks.engine.training import datum, groups
from benchmarks.engine.training import ours as train
from benchmarks.figure import Measured
from plait.engines.torch.arch import Arch, read_arch

DECODE_AT_LEAST, TRAIN_AT_LEAST = 0.65, 0.80
BATCH = 64
REPEATS = 3
PROMPT, ANSWER = 64, 32


def measure() -> Measured:
    """The smaller of the two shares over its bar."""
    torch.set_num_threads(THREADS)
    arch = read_arch(model_dir())
    weights = arch.n_layers * (_qkv(arch) + _behind_attention(arch))
    weights += arch.hidden * arch.vocab_size
    tokens = groups(2, 8, PROMPT, ANSWER)
    data = [datum(t, PROMPT, (-1.0) ** i) for i, t in enumerate(tokens)]
    n_scored = sum(sum(d.mask) for d in data)
    train(data)
    decodes, trains = [], []
    for _ in range(REPEATS):
        peak = gemm_flops()
        decodes.append(2 * weights * decode(BATCH) / peak)
        peak = gemm_flops()
        seconds, n_tokens = train(data)
        trains.append(_training_flops(arch, n_tokens, n_scored) / seconds / peak)
    d, t = median(decodes), median(trains)
    return Measured(
        value=min(d / DECODE_AT_LEAST, t / TRAIN_AT_LEAST),
        ok=d >= DECODE_AT_LEAST and t >= TRAIN_AT_LEAST,
        detail={
            "decode": d,
            "decode_bar": DECODE_AT_LEAST,
            "train": t,
            "train_bar": TRAIN_AT_LEAST,
            "peak_gflops": gemm_flops() / 1e9,
        },
    )


def _qkv(arch: Arch) -> int:
    return arch.hidden * (arch.q_size + 2 * arch.kv_size)


def _behind_attention(arch: Arch) -> int:
    return arch.hidden * (arch.q_size + 3 * arch.inter)


def _training_flops(arch: Arch, n_tokens: int, n_scored: int) -> int:
    """Forward and backward: behind the last attention, and in the head, only scored positions
    count; the embedding needs no gradient, so neither does the first projection's input."""
    rest = (arch.n_layers - 1) * _behind_attention(arch)
    tokens = 4 * arch.n_layers * _qkv(arch) - 2 * _qkv(arch) + 4 * rest
    scored = 4 * _behind_attention(arch) + 4 * arch.hidden * arch.vocab_size
    return n_tokens * tokens + n_scored * scored
