"""N clients of a Tinker server at once, through the real SDK; runs in an SDK's environment.

    clients.py '{"url": …, "key": …, "model": …, "n": 4, "phases": ["train", "sample", "loop"], …}'

Prints one JSON line: by phase the tokens, the seconds and each client's step times. All clients
begin a phase together, after a warm-up, and then go at their own speed.
"""

import json
import logging
import random
import statistics
import sys
import threading
import time
import urllib.request
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import tinker  # noqa: E402
from tinker import types  # noqa: E402

TOLD = {
    "n": 1,
    "phases": ["train", "sample"],
    "steps": 3,
    "warmup": 1,
    "batch": 4,
    "seq": 128,
    "rank": 8,
    "prompts": 4,
    "samples": 4,
    "prompt_len": 32,
    "max_tokens": 64,
    "loop_tokens": 32,
    "lr": 1e-3,
    "first_token": 5,
    "last_token": 49_000,
    "prompt_ids": None,
    **json.loads(sys.argv[1]),
}


def result(value):
    return value.result() if hasattr(value, "result") else value


class Client:
    """One tenant's script."""

    def __init__(self, number):
        self.random = random.Random(number)
        self.service = tinker.ServiceClient(base_url=TOLD["url"], api_key=TOLD["key"])
        self.training = result(
            self.service.create_lora_training_client(
                base_model=TOLD["model"], rank=TOLD["rank"], seed=number, train_unembed=False
            )
        )
        self.sampling = None

    def leave(self):
        """Give the model's place to others. The older SDKs know no way to: what they leave stays
        for minutes, and a server with few places has none for the next."""
        if hasattr(self.service, "close"):
            result(self.service.close("success"))
            return
        body = json.dumps({"model_id": self.training.model_id}).encode()
        headers = {"Content-Type": "application/json", "X-API-Key": TOLD["key"]}
        request = urllib.request.Request(f"{TOLD['url']}/api/v1/unload_model", body, headers)
        urllib.request.urlopen(request, timeout=60).close()

    def tokens(self, n):
        return [self.random.randrange(TOLD["first_token"], TOLD["last_token"]) for _ in range(n)]

    def supervised(self):
        data = []
        for _ in range(TOLD["batch"]):
            tokens = self.tokens(TOLD["seq"] + 1)
            data.append(
                types.Datum(
                    model_input=types.ModelInput.from_ints(tokens[:-1]),
                    loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * TOLD["seq"]},
                )
            )
        return data

    def update(self, data, loss):
        gradient = self.training.forward_backward(data, loss)
        step = self.training.optim_step(types.AdamParams(learning_rate=TOLD["lr"]))
        found = result(gradient)
        result(step)
        return found

    def snapshot(self):
        self.sampling = result(self.training.save_weights_and_get_sampling_client())

    def sample(self, prompts, max_tokens, stop):
        params = types.SamplingParams(max_tokens=max_tokens, temperature=1.0, stop=stop)
        asked = [
            self.sampling.sample(types.ModelInput.from_ints(p), TOLD["samples"], params)
            for p in prompts
        ]
        return [result(a).sequences for a in asked]

    def train(self):
        """One step on fixed data; trained tokens."""
        if not hasattr(self, "data"):
            self.data = self.supervised()
        self.update(self.data, "cross_entropy")
        return TOLD["batch"] * TOLD["seq"]

    def draw(self):
        """One set of samples; sampled tokens."""
        if self.sampling is None:
            self.snapshot()
        prompts = [self.tokens(TOLD["prompt_len"]) for _ in range(TOLD["prompts"])]
        groups = self.sample(prompts, TOLD["max_tokens"], None)
        return sum(len(s.tokens) for g in groups for s in g)

    def loop(self):
        """One step of RL: new weights to the sampler, samples, a gradient, a step."""
        self.snapshot()
        prompts = TOLD["prompt_ids"]
        prompts = prompts or [self.tokens(TOLD["prompt_len"]) for _ in range(TOLD["prompts"])]
        groups = self.sample(prompts, TOLD["loop_tokens"], [])
        data, n = [], 0
        for prompt, group in zip(prompts, groups, strict=True):
            rewards = [float(sum(s.tokens) % 1000) / 1000 for s in group]
            mean = sum(rewards) / len(rewards)
            for sampled, reward in zip(group, rewards, strict=True):
                whole, answer = list(prompt) + list(sampled.tokens), len(sampled.tokens)
                before = [0.0] * (len(prompt) - 1)
                data.append(
                    types.Datum(
                        model_input=types.ModelInput.from_ints(whole[:-1]),
                        loss_fn_inputs={
                            "target_tokens": whole[1:],
                            "logprobs": before + list(sampled.logprobs),
                            "advantages": before + [reward - mean] * answer,
                        },
                    )
                )
                n += len(whole)
        self.update(data, "importance_sampling")
        return n


def together(clients, verb, times):
    """All clients do ``verb`` so often; seconds, tokens, each one's times, errors."""
    took, tokens, errors = [[] for _ in clients], [0] * len(clients), []
    ready = threading.Barrier(len(clients) + 1)

    def go(i):
        ready.wait()
        try:
            for _ in range(times):
                start = time.perf_counter()
                tokens[i] += getattr(clients[i], verb)()
                took[i].append(time.perf_counter() - start)
        except Exception as error:
            errors.append(repr(error)[:400])

    threads = [threading.Thread(target=go, args=(i,)) for i in range(len(clients))]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    if errors:
        raise RuntimeError(f"{verb}: {errors[0]}")
    return seconds, sum(tokens), took


def main():
    clients = [Client(i) for i in range(TOLD["n"])]
    found = {}
    for phase in TOLD["phases"]:
        verb = {"train": "train", "sample": "draw", "loop": "loop"}[phase]
        warm_s, _, _ = together(clients, verb, TOLD["warmup"])
        seconds, tokens, took = together(clients, verb, TOLD["steps"])
        found[phase] = {
            "tok_s": tokens / seconds,
            "tokens": tokens,
            "seconds": seconds,
            "warm_s": warm_s,
            "median_step_s": [statistics.median(t) for t in took],
            "steps_s": took,
        }
    for client in clients:
        client.leave()
    print(json.dumps(found), flush=True)


main()
sys.stdout.flush()
__import__("os")._exit(0)  # the SDK's threads outlive what they were for
