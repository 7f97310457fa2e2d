"""Other tokens in a prompt's places, as the SDK asks for them; in an SDK's environment.

    alternatives.py '{"url": …, "key": …, "model": …}'

Prints one JSON line: what ``SamplingClient.sample`` gave for every argument that it has, and what
it raised for some that are wrong.
"""

import inspect
import json
import logging
import os
import sys
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import tinker  # noqa: E402
import torch  # noqa: E402
from tinker import types  # noqa: E402

TOLD = json.loads(sys.argv[1])
TOKENS = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
PROMPT = types.ModelInput.from_ints(TOKENS)
ROWS = len(TOKENS) - 1
service = tinker.ServiceClient(base_url=TOLD["url"], api_key=TOLD["key"])
client = service.create_sampling_client(base_model=TOLD["model"])


def sample(**asked):
    seed = asked.pop("seed", 5)
    params = types.SamplingParams(max_tokens=1, temperature=1.0, seed=seed)
    told = {"prompt": PROMPT, "num_samples": 1, "sampling_params": params, **asked}
    return client.sample(**told).result()


def raised(**asked):
    try:
        sample(**asked)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def dense(rows):
    return types.TensorData.from_torch(torch.tensor(rows, dtype=torch.int64))


def drawn(found):
    alternatives = found.prompt_alt_tokens
    tokens, logprobs = alternatives.tokens.to_torch(), alternatives.logprobs.to_torch()
    return {
        "shapes": [list(tokens.shape), list(logprobs.shape)],
        "dtypes": [str(tokens.dtype), str(logprobs.dtype)],
        "tokens": tokens.tolist(),
        "logprobs": logprobs.tolist(),
    }


every = {
    "include_prompt_logprobs": True,
    "topk_prompt_logprobs": 2,
    "topk_sample_logprobs": 1,
    "target_prompt_logprobs": dense([[token, 7, -1] for token in TOKENS[1:]]),
    "prompt_alt_tokens_k": 3,
    "prompt_logprobs_last_n": ROWS,
}
named = {"self", "prompt", "num_samples", "sampling_params", *every}
whole = sample(**every)
found = whole.target_prompt_logprobs
out = {
    "not asked for": sorted(
        set(inspect.signature(tinker.SamplingClient.sample).parameters) - named
    ),
    "prompt_logprobs": whole.prompt_logprobs,
    "dense": {"shape": found.shape, "dtype": found.dtype, "rows": found.to_torch().tolist()},
    "sparse indices of the dense": found.sparse_crow_indices,
    "drawn": drawn(whole),
}

ids = torch.full((ROWS, 50), -1, dtype=torch.int64)
ids[ROWS - 1, 49], ids[4, 0] = 7, TOKENS[5]
asked = types.TensorData.from_torch_sparse(ids, pad_value=-1)
answer = sample(target_prompt_logprobs=asked).target_prompt_logprobs
out["sparse"] = {
    "was sparse": asked.sparse_crow_indices is not None,
    "same layout": [
        answer.sparse_crow_indices == asked.sparse_crow_indices,
        answer.sparse_col_indices == asked.sparse_col_indices,
        answer.shape == asked.shape,
    ],
    "cells": [float(answer.to_torch()[ROWS - 1, 49]), float(answer.to_torch()[4, 0])],
    "sum": float(answer.to_torch().sum()),
}
out["again"] = drawn(sample(prompt_alt_tokens_k=3))
out["otherwise"] = drawn(sample(prompt_alt_tokens_k=3, seed=6))
one = types.ModelInput.from_ints([10])
out["one token"] = drawn(sample(prompt=one, prompt_alt_tokens_k=3))["shapes"]
out["raised"] = {
    "rows": raised(target_prompt_logprobs=dense([[1]] * (ROWS + 1))),
    "no id": raised(target_prompt_logprobs=dense([[-1]] * ROWS)),
    "vocabulary": raised(target_prompt_logprobs=dense([[10**7]] * ROWS)),
    "below": raised(target_prompt_logprobs=dense([[-5]] * ROWS)),
    "k": raised(prompt_alt_tokens_k=21),
}
print(json.dumps(out), flush=True)
os._exit(0)  # threads of the client may still be in a poll
