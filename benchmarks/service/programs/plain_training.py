"""Steps of a plain transformers + PEFT loop on the data of ``clients.py``'s "train" phase.

    plain_training.py '{"model": …, "steps": 3, "batch": 4, "seq": 128, "rank": 8, "at_once": 4}'

Prints one JSON line: trained tokens per second.
"""

import json
import os
import random
import sys
import time

import torch

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

from peft import LoraConfig, get_peft_model  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

TOLD = json.loads(sys.argv[1])


def main():
    batch, seq = TOLD["batch"], TOLD["seq"]
    rng = random.Random(0)
    rows = [[rng.randrange(5, 49_000) for _ in range(seq + 1)] for _ in range(batch)]
    tokens = torch.tensor(rows)
    base = AutoModelForCausalLM.from_pretrained(TOLD["model"], dtype=torch.float32)
    config = LoraConfig(r=TOLD["rank"], lora_alpha=32, target_modules="all-linear")
    model = get_peft_model(base, config)
    adam = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.0
    )

    def step():
        for part in tokens.split(TOLD["at_once"]):
            logits = model(part[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum"
            )
            loss.backward()
        adam.step()
        adam.zero_grad()

    step()
    start = time.perf_counter()
    for _ in range(TOLD["steps"]):
        step()
    seconds = time.perf_counter() - start
    print(json.dumps({"tok_s": TOLD["steps"] * batch * seq / seconds}))


main()
