"""Every public method of the SDK's clients, called once; in an SDK's environment.

    methods.py '{"url": …, "key": …, "model": …}'

Prints one JSON line: ``Class.method`` → "ok", "no call" where this program has none, or the error.
"""

import asyncio
import inspect
import itertools
import json
import logging
import os
import sys
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import tinker  # noqa: E402
from tinker import types  # noqa: E402

TOLD = json.loads(sys.argv[1])
os.environ.update(TINKER_BASE_URL=TOLD["url"], TINKER_API_KEY=TOLD["key"])
os.environ.update(TINKER_PROJECT_ID="mine", TINKER_TELEMETRY="0", HF_HUB_OFFLINE="1")
NUMBER = itertools.count()
WAIT_S = 60.0


def result(value):
    """The end of whatever a method gave: futures, coroutines, futures of coroutines."""
    while True:
        if inspect.isawaitable(value) and not hasattr(value, "result"):
            value = asyncio.run(awaited(value))
        elif hasattr(value, "result") and callable(value.result):
            value = value.result(WAIT_S) if takes_timeout(value) else value.result()
        else:
            return value


def takes_timeout(value):
    try:
        return "timeout" in inspect.signature(value.result).parameters
    except (TypeError, ValueError):
        return False


async def awaited(value):
    value = await asyncio.wait_for(value, WAIT_S)
    if hasattr(value, "result_async"):
        value = await value.result_async()
    return value


def new(prefix="c"):
    return f"{prefix}{next(NUMBER)}"


def datum():
    return types.Datum(
        model_input=types.ModelInput.from_ints(list(range(10, 18))),
        loss_fn_inputs={"target_tokens": list(range(11, 19)), "weights": [1.0] * 8},
    )


def custom(data, logprobs):
    loss = -sum(row.sum() for row in logprobs)
    return loss, {"mine:sum": float(loss.detach())}


def traced(logprobs, weights):
    loss = -(logprobs * weights).sum()
    return loss, {"custom/mine:sum": loss}


service = tinker.ServiceClient(base_url=TOLD["url"], api_key=TOLD["key"])
training = result(
    service.create_lora_training_client(base_model=TOLD["model"], rank=4, train_unembed=False)
)
state = result(training.save_state("kept")).path
weights = result(training.save_weights_for_sampler("sam")).path
external = None
if hasattr(training, "save_weights_external"):
    external = result(training.save_weights_external("ext")).path
sampling = result(service.create_sampling_client(model_path=weights))
rest = service.create_rest_client()
sampler_id = sampling._sampling_session_id
session_id = service.holder.get_session_id()
run_id = training.model_id
prompt = types.ModelInput.from_ints([10, 20, 30, 40])
params = types.SamplingParams(max_tokens=2)


def kept():
    """A checkpoint that may be deleted."""
    return result(training.save_state(new())).path


def id_of(path):
    return path.removeprefix("tinker://").split("/", 1)[1]


CALLS = {
    tinker.ServiceClient: (
        service,
        {
            "get_server_capabilities": lambda: (),
            "create_lora_training_client": lambda: (TOLD["model"], 4),
            "create_training_client_from_state": lambda: (state,),
            "create_training_client_from_state_with_optimizer": lambda: (state,),
            "create_sampling_client": lambda: (weights,),
            "create_rest_client": lambda: (),
            "create_custom_loss": lambda: (traced, {"logprobs": 1, "weights": 1}),
            "copy_weights": lambda: (state,),
            "get_telemetry": lambda: (),
        },
    ),
    tinker.TrainingClient: (
        training,
        {
            "forward": lambda: ([datum()], "cross_entropy"),
            "forward_backward": lambda: ([datum()], "cross_entropy"),
            "forward_backward_custom": lambda: ([datum()], custom),
            "optim_step": lambda: (types.AdamParams(),),
            "save_state": lambda: (new(),),
            "save_weights_for_sampler": lambda: (new(),),
            "save_weights_external": lambda: (new(),),
            "save_weights_and_get_sampling_client": lambda: (),
            "load_state": lambda: (state,),
            "load_state_with_optimizer": lambda: (state,),
            "create_sampling_client": lambda: (weights,),
            "get_info": lambda: (),
            "get_tokenizer": lambda: (),
            "get_telemetry": lambda: (),
        },
    ),
    tinker.SamplingClient: (
        sampling,
        {
            "sample": lambda: (prompt, 2, params),
            "compute_logprobs": lambda: (prompt,),
            "get_base_model": lambda: (),
            "get_sampler_handle": lambda: (),
            "create": lambda: (service.holder,),
            "from_sampler_handle": lambda: (sampling.get_sampler_handle(),),
            "get_tokenizer": lambda: (),
            "get_telemetry": lambda: (),
        },
    ),
    type(rest): (
        rest,
        {
            "get_server_capabilities": lambda: (),
            "get_training_run": lambda: (run_id,),
            "get_training_run_by_tinker_path": lambda: (state,),
            "get_weights_info_by_tinker_path": lambda: (state,),
            "list_training_runs": lambda: (),
            "list_checkpoints": lambda: (run_id,),
            "list_user_checkpoints": lambda: (),
            "list_sessions": lambda: (),
            "get_session": lambda: (session_id,),
            "get_sampler": lambda: (sampler_id,),
            "search_sessions": lambda: (types.SessionSearchRequest(),),
            "get_external_weights_urls": lambda: (external,),
            "get_checkpoint_archive_url": lambda: (run_id, id_of(state)),
            "get_checkpoint_archive_url_from_tinker_path": lambda: (state,),
            "publish_checkpoint_from_tinker_path": lambda: (state,),
            "unpublish_checkpoint_from_tinker_path": lambda: (state,),
            "set_checkpoint_ttl_from_tinker_path": lambda: (state, 3600),
            "delete_checkpoint": lambda: (run_id, id_of(kept())),
            "delete_checkpoint_from_tinker_path": lambda: (kept(),),
            "copy_weights": lambda: (state,),
            "whoami": lambda: (),
            "assign_session_project": lambda: (session_id, "p"),
            "export_session_trace": lambda: (session_id,),
            "get_telemetry": lambda: (),
        },
    ),
}
LAST = ("close",)
"""Ends the session, so it comes last."""


def every_argument():
    """All that ``sample`` can be asked for, of an SDK that has it."""
    asked = {
        "include_prompt_logprobs": True,
        "topk_prompt_logprobs": 2,
        "topk_sample_logprobs": 1,
        "target_prompt_logprobs": types.TensorData(data=[7, -1, 8], dtype="int64", shape=[3, 1]),
        "prompt_alt_tokens_k": 2,
        "prompt_logprobs_last_n": 2,
    }
    known = inspect.signature(sampling.sample).parameters
    return {name: value for name, value in asked.items() if name in known}


def methods(kind):
    return sorted(
        name
        for name in dir(kind)
        if not name.startswith("_") and callable(getattr(kind, name)) and name not in LAST
    )


KEYWORDS = {
    "SamplingClient.create": {"model_path": weights, "base_model": TOLD["model"]},
    "SamplingClient.sample": every_argument(),
    "SamplingClient.sample_async": every_argument(),
}


def call(client, name, arguments):
    keywords = KEYWORDS.get(f"{type(client).__name__}.{name}", {})
    try:
        result(getattr(client, name)(*arguments(), **keywords))
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:300]
    return "ok"


found = {}
for kind, (client, calls) in CALLS.items():
    for name in methods(kind):
        arguments = calls.get(name) or calls.get(name.removesuffix("_async"))
        said = "no call" if arguments is None else call(client, name, arguments)
        found[f"{kind.__name__}.{name}"] = said
if hasattr(service, "close"):
    found["ServiceClient.close"] = call(service, "close", lambda: ("success",))
print(json.dumps(found))
sys.stdout.flush()
os._exit(0)  # threads of the client may still be in a poll
