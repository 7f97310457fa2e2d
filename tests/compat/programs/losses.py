"""Losses of a client's own, carried out by the server and by the client; in an SDK's environment.

    losses.py '{"url": …, "key": …, "model": …}'

Prints one JSON line: of each loss what both ways gave, and what was said of losses that are
refused.
"""

import dataclasses
import json
import logging
import math
import os
import sys
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import tinker  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from tinker import types  # noqa: E402

TOLD = json.loads(sys.argv[1])
T, K, N = 8, 3, 5
ADAM = types.AdamParams(learning_rate=1e-2)


def draws(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ppo(logprobs, sampled, advantages):
    log_ratio = torch.clamp(logprobs - sampled, -20.0, 20.0)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(0.8, 1.2)
    loss = -torch.min(ratio * advantages, clipped * advantages).sum()
    k3 = torch.expm1(-log_ratio) + log_ratio
    return loss + 0.1 * k3.sum(), {
        "custom/clip_fraction:mean": (ratio != clipped).float().mean(),
        "custom/kl:mean": k3.detach().mean(),
        "custom/tokens:sum": torch.ones_like(logprobs).sum(),
    }


def preference(logprobs, reference, weights, sign):
    """One margin for a sequence, as in DPO: it ties all its tokens together."""
    margin = 0.1 * sign * ((logprobs - reference) * weights).sum()
    loss = -F.logsigmoid(margin) / math.sqrt(logprobs.shape[0])
    return loss, {"custom/right:mean": (margin > 0).float(), "custom/margin:sum": margin}


def distillation(logprobs, teacher):
    """Soft targets: rank 2."""
    p = torch.softmax(teacher, dim=-1)
    q = torch.log_softmax(logprobs, dim=-1)
    per_position = F.kl_div(q, p, reduction="none").sum(-1)
    top, where = p.max(dim=-1)
    picked = logprobs.gather(-1, where.unsqueeze(-1)).squeeze(-1)
    return per_position.sum() - 0.01 * (top * picked)[1:-1].sum(), {
        "custom/kl:mean": per_position.mean(),
        "custom/picked:sum": picked.sum(),
    }


def smooth(logprobs, weights):
    """Neighbours, masks, sorting, constants: odds and ends."""
    kept = torch.where(weights > 0, logprobs, torch.full_like(logprobs, -math.inf))
    steps = (logprobs[1:] - logprobs[:-1]).abs()
    worst = torch.topk(logprobs, 2, largest=False).values
    total = torch.logsumexp(kept, dim=0) + 0.5 * steps.pow(2).mean() - worst.sum() / 3
    position = torch.cumsum(torch.ones_like(logprobs), 0) / logprobs.size(0)
    return total + (position * logprobs).sum() * 1e-1, {"custom/worst:mean": worst.mean()}


def hard(i, **inputs):
    tokens = [(31 * i + 7 * j) % 200 for j in range(T + 1)]
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], **inputs},
    )


def soft(i, **inputs):
    tokens = [(31 * i + 7 * j) % 200 for j in range(T + 1)]
    targets = torch.tensor([[t, (t + 1) % 200, 5] for t in tokens[1:]])
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": targets, **inputs},
    )


def scalar(value):
    return types.TensorData(data=[value], dtype="float32", shape=[])


def weights(i):
    return torch.tensor([0.0, 0.0] + [1.0 + 0.1 * i] * (T - 2))


LOSSES = {
    "ppo": (
        ppo,
        {"logprobs": 1, "sampled": 1, "advantages": 1},
        [hard(i, sampled=-5 + draws(i, T), advantages=draws(9 + i, T)) for i in range(N)],
    ),
    "preference": (
        preference,
        {"logprobs": 1, "reference": 1, "weights": 1, "sign": 0},
        [
            hard(i, reference=-5 + draws(i, T), weights=weights(i), sign=scalar((-1.0) ** i))
            for i in range(N)
        ],
    ),
    "distillation": (
        distillation,
        {"logprobs": 2, "teacher": 2},
        [soft(i, teacher=draws(i, T, K)) for i in range(N)],
    ),
    "smooth": (
        smooth,
        {"logprobs": 1, "weights": 1},
        [hard(i, weights=weights(i)) for i in range(N)],
    ),
}


def bare(datum):
    """Only what is scored."""
    targets = datum.loss_fn_inputs["target_tokens"].to_torch()
    inputs = {"target_tokens": targets, "weights": torch.ones(targets.shape)}
    return types.Datum(model_input=datum.model_input, loss_fn_inputs=inputs)


def trained(training, data, handle):
    """What a loss gives, and the model after a step by it."""
    promise = training.forward_backward_custom(data, handle)
    step = training.optim_step(ADAM)  # asked for at once
    out, stepped = promise.result(), step.result()
    after = training.forward([bare(d) for d in data], "cross_entropy").result()
    return {
        "metrics": {k: v for k, v in out.metrics.items() if k != "surrogate_loss:sum"},
        "logprobs": [list(map(float, o["logprobs"].data)) for o in out.loss_fn_outputs],
        "shapes": [o["logprobs"].shape for o in out.loss_fn_outputs],
        "norm": stepped.metrics["grad_norm:mean"],
        "after": after.metrics["loss:sum"],
    }


def said(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


service = tinker.ServiceClient(base_url=TOLD["url"], api_key=TOLD["key"])


def model():
    made = service.create_lora_training_client(base_model=TOLD["model"], rank=4, seed=7)
    return made.result() if hasattr(made, "result") else made


found = {}
for name, (function, ranks, data) in LOSSES.items():
    handle = service.create_custom_loss(function, ranks).result()
    assert handle.loss_id is not None, "the server did not take it"
    local = dataclasses.replace(handle, loss_id=None)
    found[name] = {
        "server": trained(model(), data, handle),
        "client": trained(model(), data, local),
    }


def unlisted(logprobs):
    return torch.cumprod(logprobs, 0).sum(), {}


def out_of_range(logprobs):
    return logprobs[99:100].sum() + logprobs[99], {}


training = model()
bad = service.create_custom_loss(out_of_range, {"logprobs": 1}).result()
found["said"] = {
    "unlisted": said(lambda: service.create_custom_loss(unlisted, {"logprobs": 1}).result()),
    "out of range": said(lambda: training.forward_backward_custom([hard(1)], bad).result()),
    "then": said(
        lambda: training.forward_backward([hard(1, weights=weights(1))], "cross_entropy").result()
    ),
}
print(json.dumps(found))
sys.stdout.flush()
os._exit(0)  # threads of the client may still be in a poll
