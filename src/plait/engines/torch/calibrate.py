"""Calibrate: how fast this machine decodes, reads and trains a model, in under a minute.

``python -m plait.engines.torch.calibrate MODEL_DIR CORES DEVICE DTYPE`` prints one JSON line:
tokens per second of decoding by batch size, of prefill, and of training. Random tokens, real
weights. Each is the best of several steps: a busy neighbour only ever makes a step slower.
``bench`` measures more.
"""

import json
import sys
import time

import torch

from plait.core.runs import LoraSpec
from plait.engines.factory import BLOCK_SIZE
from plait.engines.torch.devices import DTYPES
from plait.engines.torch.loads import RUN, add_samples, training_data
from plait.engines.torch.rollout import TorchRollout
from plait.engines.torch.trainer import TorchTrain

BATCHES = (1, 8, 32, 64)
PROMPT = 32
CACHE_TOKENS = 4096
TRAIN_SEQS, TRAIN_LEN = 8, 64


def main() -> None:
    model_dir, cores, device, dtype = sys.argv[1:]
    on = {"device": device, "dtype": DTYPES[dtype]}
    torch.set_num_threads(int(cores))
    rollout = TorchRollout(model_dir, n_blocks=CACHE_TOKENS // BLOCK_SIZE, **on)
    rates = {"decode": {}, "prefill": 0.0, "train": 0.0}
    for batch in BATCHES:
        decode, prefill = _decode(rollout, batch)
        rates["decode"][batch] = decode
        rates["prefill"] = max(rates["prefill"], prefill)
    rates["train"] = _train(TorchTrain(model_dir, **on), rollout.shape.vocab_size)
    print(json.dumps(rates))


def _decode(rollout: TorchRollout, batch: int) -> tuple[float, float]:
    add_samples(rollout, batch, PROMPT)
    decode = prefill = 0.0
    while rollout.has_work():
        start = time.perf_counter()
        step = rollout.step()
        rate = step.n_tokens / (time.perf_counter() - start)
        if step.n_prefill_tokens:
            prefill = max(prefill, rate)
        elif step.n_tokens == batch:
            decode = max(decode, rate)
    return decode, prefill


def _train(train: TorchTrain, vocab_size: int) -> float:
    train.create(RUN, LoraSpec())
    data = training_data(vocab_size, TRAIN_SEQS, TRAIN_LEN)
    best = 0.0
    for _ in range(2):
        start = time.perf_counter()
        for _ in train.forward_backward(RUN, data, "cross_entropy", {}):
            pass
        best = max(best, TRAIN_SEQS * TRAIN_LEN / (time.perf_counter() - start))
    return best


if __name__ == "__main__":
    main()
