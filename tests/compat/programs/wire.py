"""The SDK's own bytes, and what it makes of ours; in an SDK's environment.

    wire.py '{"output": HEX, "sample": HEX}'

Prints one JSON line: the schema that the SDK has, a request as it writes it, and our two answers as
it reads them.
"""

import json
import sys

import numpy as np
import torch
from google.protobuf import descriptor_pb2
from tinker import types
from tinker.proto import request_conv, response_conv, tinker_public_pb2

TOLD = json.loads(sys.argv[1])
TYPES = {
    v: k.removeprefix("TYPE_").lower() for k, v in descriptor_pb2.FieldDescriptorProto.Type.items()
}


def schema():
    file = descriptor_pb2.FileDescriptorProto()
    tinker_public_pb2.DESCRIPTOR.CopyToProto(file)
    out = {}
    for message in file.message_type:
        for each in (message, *message.nested_type):
            name = message.name if each is message else f"{message.name}.{each.name}"
            out[name] = {
                field.name: [
                    field.number,
                    TYPES[field.type],
                    field.label == field.LABEL_REPEATED,
                    field.type_name.removeprefix(".tinker_public."),
                ]
                for field in each.field
            }
    return out


def request():
    targets = torch.zeros((4, 6), dtype=torch.int64)
    weights = torch.zeros((4, 6))
    targets[0, 1], targets[3, 5] = 7, 9
    weights[0, 1], weights[3, 5] = 0.25, -1.5
    soft = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2]).append(
            types.EncodedTextChunk(tokens=[3, 4])
        ),
        loss_fn_inputs={"target_tokens": targets, "weights": weights},
    )
    hard = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2, 3, 4]),
        loss_fn_inputs={"target_tokens": [2, 3, 4, 5], "weights": np.array([0, 1, 1, 1.5])},
    )
    spans = hasattr(hard, "with_provenance")
    if spans:
        hard = hard.with_provenance(
            model_input=[types.PromptProvenanceSpan(sequence_id="a", length=4)],
            loss_fn_inputs=[
                types.PromptProvenanceSpan(sequence_id="a", length=1),
                types.SampledProvenanceSpan(sequence_id="a", offset=0, length=3),
            ],
        )
    asked = types.ForwardBackwardInput(
        data=[soft, hard], loss_fn="ppo", loss_fn_config={"clip_low_threshold": 0.5}
    )
    message = request_conv.forward_backward_request_to_proto(
        types.ForwardBackwardRequest(forward_backward_input=asked, model_id="m", seq_id=3)
    )
    return {"hex": message.SerializeToString().hex(), "spans": spans}


def rows(tensor):
    return {"shape": tensor.shape, "data": list(map(float, tensor.data))}


def alternatives(found):
    """Where an SDK has them."""
    drawn, targets = getattr(found, "prompt_alt_tokens", None), None
    if getattr(found, "target_prompt_logprobs", None) is not None:
        targets = found.target_prompt_logprobs.tolist()
    return {
        "targets": targets,
        "alternatives": drawn and [drawn.tokens.tolist(), drawn.logprobs.tolist()],
    }


output = response_conv.deserialize_forward_backward_output(bytes.fromhex(TOLD["output"]))
sample = response_conv.deserialize_sample_response(bytes.fromhex(TOLD["sample"]))
print(
    json.dumps(
        {
            "schema": schema(),
            "request": request(),
            "output": {
                "metrics": output.metrics,
                "logprobs": [rows(row["logprobs"]) for row in output.loss_fn_outputs],
            },
            "sample": alternatives(sample)
            | {
                "prompt_logprobs": sample.prompt_logprobs,
                "topk_prompt_logprobs": sample.topk_prompt_logprobs,
                "sequences": [
                    {
                        "tokens": s.tokens,
                        "logprobs": s.logprobs,
                        "stop_reason": s.stop_reason,
                        "topk": getattr(s, "topk_logprobs", None),
                    }
                    for s in sample.sequences
                ],
            },
        }
    )
)
