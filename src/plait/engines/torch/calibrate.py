"""Calibrate: how fast this machine decodes, reads and trains a model, in under a minute.

``python -m plait.engines.torch.calibrate MODEL_DIR CORES DEVICE DTYPE`` prints one JSON line:
tokens per second of decoding by batch size, of prefill, and of training. Random tokens, real
weights. Each is the best of several steps: a busy neighbour only ever makes a step slower.
"""

import json
import sys
import time

import torch

from plait.core.ids import OpId, RunId
from plait.core.operations import Datum, Sample, SamplingParams
from plait.core.runs import LoraSpec
from plait.engines.factory import BLOCK_SIZE
from plait.engines.torch.devices import DTYPES
from plait.engines.torch.rollout import TorchRollout
from plait.engines.torch.trainer import TorchTrain

BATCHES = (1, 8, 32, 64)
PROMPT, NEW = 32, 12
"""Tokens: enough decode steps to leave the prefill behind, few enough for a small machine."""
CACHE_TOKENS = 4096
TRAIN_SEQS, TRAIN_LEN = 8, 64
RUN = RunId("calibrate")


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
    generator = torch.Generator().manual_seed(batch)
    params = SamplingParams(max_tokens=NEW, seed=batch, ignore_eos=True)
    for i in range(batch):
        prompt = torch.randint(3, rollout.shape.vocab_size - 3, (PROMPT,), generator=generator)
        rollout.add(
            Sample(
                op_id=OpId(f"{batch}/{i}"),
                run_id=RUN,
                version=None,
                prompt=tuple(prompt.tolist()),
                params=params,
            )
        )
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
    generator = torch.Generator().manual_seed(0)
    data = []
    for _ in range(TRAIN_SEQS):
        tokens = torch.randint(3, vocab_size - 3, (TRAIN_LEN + 1,), generator=generator).tolist()
        data.append(
            Datum(
                input_tokens=tokens[:-1],
                target_tokens=tokens[1:],
                mask=[i >= TRAIN_LEN // 2 for i in range(TRAIN_LEN)],
                inputs={"weights": [1.0] * TRAIN_LEN},
            )
        )
    best = 0.0
    for _ in range(2):
        start = time.perf_counter()
        for _ in train.forward_backward(RUN, data, "cross_entropy", {}):
            pass
        best = max(best, TRAIN_SEQS * TRAIN_LEN / (time.perf_counter() - start))
    return best


if __name__ == "__main__":
    main()
