"""Every method of the Tinker SDK that a training script uses, tried once; in an SDK's environment.

    probes.py '{"url": …, "key": …, "model": …, "deadline_s": 60}'

Prints one JSON line: probe → "ok", or what was wrong. A probe that needs what another one made is
skipped ("needs …") if that one failed; each has its own deadline, so that nothing can hang.
"""

import contextlib
import inspect
import json
import logging
import os
import sys
import threading
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import tinker  # noqa: E402
from tinker import types  # noqa: E402

TOLD = {"deadline_s": 60.0, **json.loads(sys.argv[1])}
INPUT = [10, 20, 30, 40, 50, 60, 70, 80]
TARGETS = [20, 30, 40, 50, 60, 70, 80, 90]
WEIGHTS = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
PROMPT = types.ModelInput.from_ints([10, 20, 30, 40])
PROBES = []
MADE = {}


def probe(function):
    PROBES.append(function)
    return function


def result(value):
    return value.result() if hasattr(value, "result") else value


def check(holds, what):
    if not holds:
        raise AssertionError(str(what)[:300])


def datum(**inputs):
    return types.Datum(model_input=types.ModelInput.from_ints(INPUT), loss_fn_inputs=inputs)


def supervised():
    return [datum(target_tokens=TARGETS, weights=WEIGHTS)]


def reinforced():
    advantages = [0.0, 0.0, 0.0, 1.0, 1.0, -1.0, 1.0, 1.0]
    return [datum(target_tokens=TARGETS, logprobs=[-5.0] * 8, advantages=advantages)]


def adam(**keys):
    return types.AdamParams(learning_rate=1e-4, **keys)


@probe
def service():
    MADE["service"] = tinker.ServiceClient(base_url=TOLD["url"], api_key=TOLD["key"])


@probe
def get_server_capabilities(service):
    offered = result(service.get_server_capabilities()).supported_models
    check(TOLD["model"] in [m.model_name for m in offered], offered)


@probe
def training(service):
    MADE["training"] = result(
        service.create_lora_training_client(base_model=TOLD["model"], rank=8, seed=0)
    )


@probe
def get_info(training):
    info = result(training.get_info())
    check(info.model_id == training.model_id and info.is_lora, info)


@probe
def get_tokenizer(training):
    tokenizer = training.get_tokenizer()
    check(tokenizer.decode(tokenizer.encode("What is 4 + 5?")), "an empty text")


@probe
def forward(training):
    found = result(training.forward(supervised(), "cross_entropy"))
    check("loss:sum" in found.metrics, found.metrics)


@probe
def forward_backward(training):
    found = result(training.forward_backward(supervised(), "cross_entropy"))
    check(len(found.loss_fn_outputs) == 1, found)
    check(len(list(found.loss_fn_outputs[0]["logprobs"].data)) == len(TARGETS), found)


@probe
def optim_step(training):
    result(training.optim_step(types.AdamParams(learning_rate=1e-3)))


@probe
def a_step_changes_the_model(training):
    before = result(training.forward(supervised(), "cross_entropy")).metrics["loss:sum"]
    for _ in range(2):
        gradient = training.forward_backward(supervised(), "cross_entropy")
        result(training.optim_step(types.AdamParams(learning_rate=1e-3)))
        result(gradient)
    after = result(training.forward(supervised(), "cross_entropy")).metrics["loss:sum"]
    check(after < before, (before, after))


def loss_probe(name, config, data):
    def tried(training):
        found = result(training.forward_backward(data(), name, config))
        check("loss:sum" in found.metrics, found.metrics)
        result(training.optim_step(adam()))

    tried.__name__ = f"loss_{name}"
    PROBES.append(tried)


CLIPPED = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
loss_probe("importance_sampling", None, reinforced)
loss_probe("ppo", CLIPPED, reinforced)
loss_probe("cispo", CLIPPED, reinforced)
loss_probe("dro", {"beta": 0.05}, reinforced)


@probe
def two_chunks_at_once(training):
    data = supervised() * 1100  # more than fwdbwd_max_chunk_len: the first chunk is sent last
    found = result(training.forward_backward(data, "cross_entropy"))
    check(len(found.loss_fn_outputs) == len(data), len(found.loss_fn_outputs))
    result(training.optim_step(adam()))


@probe
def forward_backward_custom(training):
    def loss(data, logprobs):
        total = -sum(row.sum() for row in logprobs)
        return total, {"mine:sum": float(total.detach())}

    found = result(training.forward_backward_custom(supervised(), loss))
    check("mine:sum" in found.metrics, found.metrics)
    result(training.optim_step(adam(grad_clip_norm=1.0, weight_decay=0.01)))


@probe
def an_unknown_loss_fails_and_the_line_goes_on(training):
    try:
        result(training.forward_backward(supervised(), "no_such_loss"))
    except Exception as error:
        check(not isinstance(error, TimeoutError), error)
    else:
        raise AssertionError("it was accepted")
    result(training.forward_backward(supervised(), "cross_entropy"))
    result(training.optim_step(adam()))


@probe
def checkpoint(training):
    MADE["checkpoint"] = result(training.save_state("ck1")).path


@probe
def the_same_name_again_ends(training, checkpoint):
    with contextlib.suppress(tinker.RequestFailedError):
        result(training.save_state("ck1"))
    result(training.forward(supervised(), "cross_entropy"))


@probe
def sampler_path(training):
    MADE["sampler_path"] = result(training.save_weights_for_sampler("s1")).path


@probe
def sampling(training):
    MADE["sampling"] = result(training.save_weights_and_get_sampling_client())


def drawn(client, n=1, **params):
    told = {"max_tokens": 4, "temperature": 1.0, **params}
    return result(client.sample(PROMPT, n, types.SamplingParams(**told))).sequences


@probe
def sample(sampling):
    found = drawn(sampling, 2, seed=1, stop=[])
    check([len(s.tokens) for s in found] == [4, 4], found)
    check(all(len(s.logprobs) == 4 for s in found), found)


@probe
def greedy_twice_is_equal(sampling):
    a, b = (list(drawn(sampling, temperature=0.0)[0].tokens) for _ in range(2))
    check(a == b, (a, b))


@probe
def one_seed_is_reproducible_and_its_samples_distinct(sampling):
    a, b = (
        [list(s.tokens) for s in drawn(sampling, 4, seed=7, max_tokens=6, stop=[])]
        for _ in range(2)
    )
    check(a == b and len({tuple(x) for x in a}) == 4, (a, b))


@probe
def compute_logprobs(sampling):
    found = list(result(sampling.compute_logprobs(PROMPT)))
    check(len(found) == 4 and found[0] is None and all(x <= 0 for x in found[1:]), found)


@probe
def topk_prompt_logprobs(sampling):
    params = types.SamplingParams(max_tokens=1)
    found = result(
        sampling.sample(PROMPT, 1, params, include_prompt_logprobs=True, topk_prompt_logprobs=2)
    ).topk_prompt_logprobs
    check(found is not None and len(found) == 4, found)


@probe
def topk_sample_logprobs(sampling):
    if "topk_sample_logprobs" not in inspect.signature(sampling.sample).parameters:
        return  # this SDK cannot ask for them
    params = types.SamplingParams(max_tokens=2)
    found = result(sampling.sample(PROMPT, 1, params, topk_sample_logprobs=2)).sequences[0]
    check(found.topk_logprobs is not None, found)


@probe
def stop_at_a_token(sampling):
    greedy = list(drawn(sampling, temperature=0.0)[0].tokens)
    token = greedy[min(1, len(greedy) - 1)]
    found = drawn(sampling, temperature=0.0, stop=[token])[0]
    at = greedy.index(token)
    check(list(found.tokens) == greedy[: at + 1], (greedy, list(found.tokens)))
    check(str(found.stop_reason).lower().endswith("stop"), found.stop_reason)


@probe
def stop_at_a_string(training, sampling):
    tokenizer = training.get_tokenizer()
    text = tokenizer.decode(list(drawn(sampling, temperature=0.0, stop=[])[0].tokens)[:2])
    if text.strip("\ufffd"):
        found = drawn(sampling, temperature=0.0, stop=[text], max_tokens=4)[0]
        check(str(found.stop_reason).lower().endswith("stop"), (text, found))


@probe
def never_stop(sampling):
    found = drawn(sampling, max_tokens=8, stop=[])[0]
    check(len(found.tokens) == 8, found)


@probe
def sample_a_named_snapshot(service, sampler_path):
    drawn(result(service.create_sampling_client(model_path=sampler_path)))


@probe
def sample_the_base_model(service):
    drawn(result(service.create_sampling_client(base_model=TOLD["model"])))


@probe
def a_snapshot_stays_as_it_was(training, sampling):
    def scored():
        return list(result(sampling.compute_logprobs(PROMPT)))

    before = scored()
    gradient = training.forward_backward(supervised(), "cross_entropy")
    result(training.optim_step(types.AdamParams(learning_rate=1e-2)))
    result(gradient)
    result(training.save_weights_and_get_sampling_client())
    check(scored() == before, (before, scored()))


@probe
def from_state(service, checkpoint):
    other = result(service.create_training_client_from_state(checkpoint))
    result(other.forward(supervised(), "cross_entropy"))


@probe
def from_state_with_optimizer(service, checkpoint):
    other = result(service.create_training_client_from_state_with_optimizer(checkpoint))
    gradient = other.forward_backward(supervised(), "cross_entropy")
    result(other.optim_step(adam()))
    result(gradient)


@probe
def rest(service):
    try:
        MADE["rest"] = service.create_rest_client()
    except AttributeError:
        MADE["rest"] = tinker.RestClient(base_url=TOLD["url"], api_key=TOLD["key"])


@probe
def list_training_runs(rest, training):
    runs = result(rest.list_training_runs()).training_runs
    check(training.model_id in [r.training_run_id for r in runs], runs)


@probe
def get_training_run(rest, training):
    run = result(rest.get_training_run(training.model_id))
    check(run.base_model == TOLD["model"], run)


@probe
def list_checkpoints(rest, training, checkpoint):
    found = result(rest.list_checkpoints(training.model_id)).checkpoints
    check(checkpoint in [c.tinker_path for c in found], found)


@probe
def list_user_checkpoints(rest, checkpoint):
    check(result(rest.list_user_checkpoints()).checkpoints, "none")


@probe
def list_sessions(rest):
    check(result(rest.list_sessions()).sessions, "none")


@probe
def get_session(rest, service, training):
    found = result(rest.get_session(service.holder.get_session_id()))
    check(training.model_id in found.training_run_ids, found)


@probe
def weights_info(rest, checkpoint):
    found = result(rest.get_weights_info_by_tinker_path(checkpoint))
    check(found.is_lora and found.lora_rank == 8, found)


@probe
def archive_url(rest, checkpoint):
    name = "get_checkpoint_archive_url_from_tinker_path"
    if hasattr(rest, name):  # gone since 0.38
        check(result(getattr(rest, name)(checkpoint)).url.startswith("http"), "no URL")


@probe
def set_ttl(rest, checkpoint):
    result(rest.set_checkpoint_ttl_from_tinker_path(checkpoint, 3600))


@probe
def publish_and_unpublish(rest, checkpoint):
    result(rest.publish_checkpoint_from_tinker_path(checkpoint))
    result(rest.unpublish_checkpoint_from_tinker_path(checkpoint))


@probe
def delete_checkpoint(rest, training, checkpoint):
    result(rest.delete_checkpoint_from_tinker_path(checkpoint))
    found = result(rest.list_checkpoints(training.model_id)).checkpoints
    check(checkpoint not in [c.tinker_path for c in found], found)


@probe
def close(service):
    if hasattr(service, "close"):
        result(service.close("success"))


def tried(function):
    needs = list(inspect.signature(function).parameters)
    missing = [n for n in needs if n not in MADE]
    if missing:
        return f"needs {missing[0]}"
    box = {}

    def run():
        try:
            function(*(MADE[n] for n in needs))
            box["said"] = "ok"
        except BaseException as error:
            box["said"] = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(TOLD["deadline_s"])
    return box.get("said", "did not end in time")


print(json.dumps({function.__name__: tried(function) for function in PROBES}), flush=True)
os._exit(0)  # a probe that hangs may not keep the rest from being told
