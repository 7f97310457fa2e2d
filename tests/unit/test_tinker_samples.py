import math

import numpy as np
import pytest

from plait.core.errors import RequestError
from plait.core.operations import Sampled, SampleResult, StopReason
from plait.service.tinker_api import bodies, samples, schema
from plait.service.work import SampleWork


def body(**over) -> bodies.SampleBody:
    params = over.pop("params", {"max_tokens": 4})
    told = {
        "sampling_session_id": "s-1:sample:0",
        "seq_id": 3,
        "prompt": {"chunks": [{"tokens": [5, 6]}, {"type": "encoded_text", "tokens": [7]}]},
        "sampling_params": params,
        "record_stability_info": True,
        **over,
    }
    return bodies.SampleBody.model_validate(told)


def work(**over) -> SampleWork:
    return samples.read(body(**over), max_context=100)


def test_a_sample_is_read() -> None:
    told = work(
        num_samples=2,
        prompt_logprobs=True,
        topk_prompt_logprobs=2,
        params={"temperature": 0.5, "top_k": -1, "top_p": 0.9, "seed": 11},
    )
    assert (told.prompt, told.n, told.prompt_logprobs, told.topk_prompt) == ((5, 6, 7), 2, True, 2)
    params = told.params
    assert (params.max_tokens, params.temperature, params.top_k, params.top_p, params.seed) == (
        97,
        0.5,
        0,
        0.9,
        11,
    )


@pytest.mark.parametrize(
    ("stop", "strings", "tokens", "ignore_eos"),
    [
        (None, (), (), False),
        ([], (), (), True),
        ("\n\nUser:", ("\n\nUser:",), (), False),
        (["a", "b"], ("a", "b"), (), False),
        ([3, 4], (), (3, 4), False),
    ],
)
def test_stop_has_three_meanings(stop, strings, tokens, ignore_eos: bool) -> None:
    params = work(params={"max_tokens": 1, "stop": stop}).params
    assert (params.stop, params.stop_tokens, params.ignore_eos) == (strings, tokens, ignore_eos)


def test_a_seed_that_is_not_given_is_the_requests_own() -> None:
    seeds = [work(seq_id=seq).params.seed for seq in (1, 2, 1)]
    assert seeds[0] == seeds[2] != seeds[1]


@pytest.mark.parametrize(
    ("over", "why"),
    [
        ({"prompt_logprobs_last_n": 1}, "it needs prompt_logprobs"),
        ({"prompt_logprobs_last_n": 3, "prompt_logprobs": True}, "1 to one less"),
        ({"topk_sample_logprobs": 21}, "give 0 to 20"),
        ({"topk_prompt_logprobs": -1}, "give 0 to 20"),
        ({"prompt": {"chunks": [{"type": "image", "data": "x"}]}}, "a prompt chunk of image"),
    ],
)
def test_what_cannot_be_given_is_refused(over: dict, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        work(**over)


RESULT = SampleResult(
    samples=(
        Sampled(
            tokens=(8, 9),
            logprobs=(-0.5, -1.5),
            stop_reason=StopReason.STOP,
            version=1,
            topk=(((8, -0.5), (1, -2.0)), ((9, -1.5),)),
        ),
        Sampled(tokens=(8,), logprobs=(-0.25,), stop_reason=StopReason.LENGTH, version=1),
    ),
    prompt_logprobs=(-3.0, -4.0),
    prompt_topk=(((6, -3.0), (2, -3.5), (4, -5.0)), ((7, -4.0),)),
)


def written(told: SampleWork):
    return schema.SampleResponse.FromString(samples.write(told, RESULT))


def matrix(topk) -> tuple[list, list]:
    shape = (topk.length, topk.k)
    tokens = np.frombuffer(topk.token_ids, "<i4").reshape(shape)
    return tokens.tolist(), np.frombuffer(topk.logprobs, "<f4").reshape(shape).tolist()


def test_sequences_are_written() -> None:
    out = written(work(topk_sample_logprobs=2))
    assert [s.stop_reason for s in out.sequences] == [schema.STOPPED, schema.AT_LENGTH]
    first = out.sequences[0]
    assert np.frombuffer(first.tokens, "<i4").tolist() == [8, 9]
    assert np.frombuffer(first.logprobs, "<f4").tolist() == [-0.5, -1.5]
    assert matrix(first.topk_sampled_logprobs) == (
        [[8, 1], [9, 0]],
        [[-0.5, -2.0], [-1.5, -99999.0]],
    )
    assert not out.prompt_logprobs
    assert not out.HasField("topk_prompt_logprobs")


def test_the_prompt_is_scored_from_its_second_token_on() -> None:
    out = written(work(prompt_logprobs=True, topk_prompt_logprobs=2))
    row = np.frombuffer(out.prompt_logprobs, "<f4").tolist()
    assert math.isnan(row[0])
    assert row[1:] == [-3.0, -4.0]
    tokens, logprobs = matrix(out.topk_prompt_logprobs)
    assert tokens == [[0, 0], [6, 2], [7, 0]]
    assert logprobs[0] == [-99999.0, -99999.0]


def test_only_the_last_of_the_prompt_is_shown_if_asked() -> None:
    out = written(work(prompt_logprobs=True, prompt_logprobs_last_n=1, topk_prompt_logprobs=1))
    row = np.frombuffer(out.prompt_logprobs, "<f4")
    assert np.isnan(row).tolist() == [True, True, False]
    assert matrix(out.topk_prompt_logprobs)[0] == [[0], [0], [7]]


def test_an_older_client_reads_json() -> None:
    told = samples.as_json(
        samples.write(work(prompt_logprobs=True, topk_prompt_logprobs=2), RESULT)
    )
    assert told["prompt_logprobs"] == [None, -3.0, -4.0]
    assert told["topk_prompt_logprobs"] == [None, [(6, -3.0), (2, -3.5)], [(7, -4.0)]]
    assert [s["stop_reason"] for s in told["sequences"]] == ["stop", "length"]
    assert told["sequences"][0]["tokens"] == [8, 9]
