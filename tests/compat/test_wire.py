"""Bytes: ours as the real SDK reads them, and its own as we do."""

import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from sdk_support import ENVIRONMENTS, NEWEST, PROGRAMS, Run

from plait.core.operations import (
    Datum,
    ForwardResult,
    Sampled,
    SampleResult,
    SamplingParams,
    StopReason,
)
from plait.service.targets import Targets
from plait.service.tinker_api import batches, samples, schema
from plait.service.work import Batch, SampleWork

pytestmark = pytest.mark.slow
ROWS = ((-1.0, -2.0, -3.0, -4.0), (-0.5, -1.5))
RENAMED = {
    "Span": ("PromptProvenanceSpan", "SampledProvenanceSpan"),
    "TopkLogprobs": ("TopkLogprobs", "TopkPromptLogprobs"),
}
"""Messages that go by other names, which are not on the wire."""
ENUMS = {"dtype": "enum", "stop_reason": "enum"}
"""Written as int32 here, which is the same on the wire."""
KINDS = {
    number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()
}


def output() -> bytes:
    data = (
        Datum(input_tokens=[1, 2], target_tokens=[[3, 4], [5, 6]], mask=[True, True]),
        Datum(input_tokens=[1, 2], target_tokens=[3, 4], mask=[True, True]),
    )
    work = Batch(data=data, loss="cross_entropy", config={}, train=True)
    return batches.write(work, ForwardResult(logprobs=ROWS, metrics={"loss:sum": 2.5}))


def sample() -> bytes:
    work = SampleWork(
        prompt=(5, 6, 7),
        n=1,
        params=SamplingParams(max_tokens=2),
        prompt_logprobs=True,
        topk_prompt=2,
        topk_sample=1,
        targets=Targets(
            shape=(2, 3),
            ids=np.array([5, -1]),
            starts=np.array([0, 2, 2]),
            columns=np.array([0, 2]),
        ),
        prompt_draws=1,
    )
    drawn = Sampled(
        tokens=(8, 9),
        logprobs=(-0.25, -0.5),
        stop_reason=StopReason.STOP,
        version=0,
        topk=(((8, -0.25),), ((1, -0.125),)),
    )
    result = SampleResult(
        samples=(drawn,),
        prompt_logprobs=(-1.0, -2.0),
        prompt_topk=(((6, -1.0), (2, -1.5)), ((7, -2.0),)),
        prompt_targets=((-2.5,), ()),
        prompt_draws=(((3, -1.25),), ((4, -0.75),)),
    )
    return samples.write(work, result)


@pytest.mark.parametrize("sdk", ENVIRONMENTS)
def test_both_read_each_others_bytes(sdk: str, run_sdk: Run) -> None:
    told = run_sdk(sdk, PROGRAMS / "wire.py", output=output().hex(), sample=sample().hex())
    assert told["output"]["metrics"] == {"loss:sum": 2.5}
    assert told["output"]["logprobs"] == [
        {"shape": [2, 2], "data": list(ROWS[0])},
        {"shape": [2], "data": list(ROWS[1])},
    ]
    read = told["sample"]
    assert read["prompt_logprobs"] == [None, -1.0, -2.0]
    assert read["topk_prompt_logprobs"] == [None, [[6, -1.0], [2, -1.5]], [[7, -2.0]]]
    if sdk == NEWEST:
        assert read["targets"] == [[-2.5, 0, 0], [0, 0, 0]]
        assert read["alternatives"] == [[[3], [4]], [[-1.25], [-0.75]]]
    (sequence,) = read["sequences"]
    assert (sequence["tokens"], sequence["logprobs"]) == ([8, 9], [-0.25, -0.5])
    assert sequence["stop_reason"] == "stop"
    assert sequence["topk"] in ([[[8, -0.25]], [[1, -0.125]]], None), "older ones cannot read it"

    work = batches.read(bytes.fromhex(told["request"]["hex"]))
    assert (work.loss, work.config, work.train) == ("ppo", {"clip_low_threshold": 0.5}, True)
    soft, hard = work.data
    assert soft.input_tokens == hard.input_tokens == [1, 2, 3, 4]
    assert soft.target_tokens[0] == [0, 7, 0, 0, 0, 0]
    assert soft.target_tokens[3] == [0, 0, 0, 0, 0, 9]
    assert soft.inputs["weights"][3] == [0, 0, 0, 0, 0, -1.5]
    assert hard.target_tokens == [2, 3, 4, 5]
    assert hard.inputs == {"weights": [0, 1, 1, 1.5]}
    if told["request"]["spans"]:
        message = batches.parse(bytes.fromhex(told["request"]["hex"]))
        kinds = [span.WhichOneof("span") for span in message.data[1].loss_fn_input_spans]
        assert kinds == ["prompt_tokens", "sampled_tokens"]
        assert message.data[1].loss_fn_input_spans[1].sampled_tokens.length == 3


@pytest.mark.parametrize("sdk", ENVIRONMENTS)
def test_every_field_of_our_schema_is_the_sdks(sdk: str, run_sdk: Run) -> None:
    theirs = run_sdk(sdk, PROGRAMS / "wire.py", output=output().hex(), sample=sample().hex())[
        "schema"
    ]
    n_checked = 0
    for described in schema.file().message_type:
        for message in RENAMED.get(described.name, (described.name,)):
            if message not in theirs and described.name in RENAMED:
                continue
            for field in described.field:
                if sdk != NEWEST and field.name not in theirs.get(message, {}):
                    continue  # newer than that SDK
                number, kind, repeated, of = theirs[message][field.name]
                assert field.number == number, (message, field.name)
                assert (field.label == field.LABEL_REPEATED) == repeated, (message, field.name)
                assert ENUMS.get(field.name, KINDS[field.type]) == kind, (message, field.name)
                if kind == "message":
                    ours = field.type_name.removeprefix(".tinker_public.")
                    assert of in RENAMED.get(ours, (ours,)), (message, field.name)
                n_checked += 1
    assert n_checked > 40
