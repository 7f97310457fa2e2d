"""Clients whose server dies and comes back; in an SDK's environment.

    known.py '{"url": …, "key": …, "model": …, "runs": 50, "tried": 3}'

Makes so many models with one step each and prints {"made": …}. After a line on standard input it
goes on with some of them as if nothing had happened, and prints how long each step took.
"""

import json
import logging
import os
import sys
import time
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import tinker  # noqa: E402
from tinker import types  # noqa: E402

TOLD = {"runs": 50, "tried": 3, **json.loads(sys.argv[1])}


def result(value):
    return value.result() if hasattr(value, "result") else value


def datum():
    tokens = list(range(5, 25))
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )


def step(training):
    gradient = training.forward_backward([datum()], "cross_entropy")
    result(training.optim_step(types.AdamParams(learning_rate=1e-2)))
    return result(gradient).metrics["loss:sum"]


def main():
    service = tinker.ServiceClient(base_url=TOLD["url"], api_key=TOLD["key"])
    models, losses = [], []
    for i in range(TOLD["runs"]):
        training = result(
            service.create_lora_training_client(base_model=TOLD["model"], rank=8, seed=i)
        )
        losses.append(step(training))
        models.append(training)
    print(json.dumps({"made": len(models)}), flush=True)
    sys.stdin.readline()
    seconds, went_on = [], 0
    for i in range(0, len(models), max(1, len(models) // TOLD["tried"]))[: TOLD["tried"]]:
        start = time.perf_counter()
        went_on += step(models[i]) < losses[i]
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": seconds, "went_on": went_on}), flush=True)


main()
os._exit(0)
