"""Many samples at once and large training writes beside them; in an SDK's environment.

    flood.py '{"url": …, "key": …, "model": …, "samples": 512, "writes": 64, "write_bytes": 500000}'

Prints one JSON line: how many of each ended well, the errors, and the seconds. A write is one
``forward_backward`` of one sequence whose body has at least that size (``BYTES_PER_TOKEN``).
"""

import json
import logging
import os
import random
import sys
import time
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import tinker  # noqa: E402
from tinker import types  # noqa: E402

TOLD = {
    "samples": 512,
    "writes": 64,
    "write_bytes": 500_000,
    "prompt_len": 16,
    "max_tokens": 16,
    "datum_len": 256,
    "last_token": 30,
    **json.loads(sys.argv[1]),
}
BYTES_PER_TOKEN = 16
"""Of a supervised sequence: an input (4), a target (8), a weight (4)."""


def result(value):
    return value.result() if hasattr(value, "result") else value


def tokens(rng, n):
    return [rng.randrange(5, TOLD["last_token"]) for _ in range(n)]


def data(rng):
    rows = []
    for _ in range(-(-TOLD["write_bytes"] // (BYTES_PER_TOKEN * TOLD["datum_len"]))):
        row = tokens(rng, TOLD["datum_len"] + 1)
        rows.append(
            types.Datum(
                model_input=types.ModelInput.from_ints(row[:-1]),
                loss_fn_inputs={
                    "target_tokens": row[1:],
                    "weights": [1.0] * TOLD["datum_len"],
                },
            )
        )
    return rows


def main():
    rng = random.Random(0)
    service = tinker.ServiceClient(base_url=TOLD["url"], api_key=TOLD["key"])
    training = result(service.create_lora_training_client(base_model=TOLD["model"], rank=4))
    sampling = result(training.save_weights_and_get_sampling_client())
    batch, errors = data(rng), []
    params = types.SamplingParams(max_tokens=TOLD["max_tokens"], temperature=1.0, stop=[])
    result(sampling.sample(types.ModelInput.from_ints(tokens(rng, 4)), 1, params))
    print(json.dumps({"ready": True}), flush=True)
    start = time.perf_counter()
    drawn = [
        sampling.sample(types.ModelInput.from_ints(tokens(rng, TOLD["prompt_len"])), 1, params)
        for _ in range(TOLD["samples"])
    ]
    written = [training.forward_backward(batch, "cross_entropy") for _ in range(TOLD["writes"])]
    ended = {"samples": 0, "writes": 0}
    for kind, asked in (("samples", drawn), ("writes", written)):
        for one in asked:
            try:
                result(one)
                ended[kind] += 1
            except Exception as error:
                errors.append(f"{kind}: {error!r}"[:300])
    seconds = time.perf_counter() - start
    print(json.dumps({**ended, "errors": errors[:5], "seconds": seconds}), flush=True)


main()
os._exit(0)
