"""Schema: the protobuf messages of the Tinker API, built when this module is imported.

Field numbers and types are the wire contract of package ``tinker_public``; a test in an environment
with the official client holds the two against each other. The descriptors live in a pool of their
own, so the official package may be imported into the same process.
"""

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_SCHEMA = """
ForwardBackwardRequest: 1 model_id string, 2 seq_id int32, 3 data Datum*, 4 loss_fn string,
  5 loss_fn_config {double}, 6 forward_only bool, 7 loss_fn_config_v2 {LossConfigValue}
LossConfigValue: 1 number double|value, 2 text string|value
Datum: 1 model_input Chunk*, 2 loss_fn_inputs {Tensor}, 3 model_input_spans ProvenanceSpan*,
  4 loss_fn_input_spans ProvenanceSpan*
Chunk: 1 encoded_text EncodedTextChunk|chunk, 2 image ImageChunk|chunk, 3 dmel DmelChunk|chunk
EncodedTextChunk: 1 tokens bytes
ImageChunk: 1 data bytes, 2 format string
DmelChunk: 1 dmel bytes
ProvenanceSpan: 1 prompt_tokens Span|span, 2 sampled_tokens Span|span
Span: 1 sequence_id string, 2 offset int64, 3 length int64
Tensor: 1 dense bytes|encoding, 2 sparse_csr SparseCsr|encoding, 3 dtype int32, 4 shape int64*
SparseCsr: 1 values bytes, 2 crow_indices bytes, 3 col_indices bytes
ForwardBackwardOutput: 1 loss_fn_output_type string, 2 loss_fn_outputs ArrayRecord*,
  3 metrics {double}
ArrayRecord: 1 type_tag string, 2 fields {BatchedTensor}, 3 num_datums int64
BatchedTensor: 1 data bytes, 2 offsets bytes, 3 dtype int32, 4 trailing_shape int64*
SampleResponse: 1 sequences SampledSequence*, 2 prompt_logprobs bytes,
  3 topk_prompt_logprobs TopkLogprobs, 4 prompt_cache_hit_tokens int32,
  5 target_prompt_logprobs Tensor, 6 prompt_alt_tokens PromptAltTokens
PromptAltTokens: 1 tokens Tensor, 2 logprobs Tensor
SampledSequence: 1 stop_reason int32, 2 tokens bytes, 3 logprobs bytes,
  4 topk_sampled_logprobs TopkLogprobs
TopkLogprobs: 1 token_ids bytes, 2 logprobs bytes, 3 k uint32, 4 length uint32
"""
"""``number name type``: ``*`` is repeated, ``{T}`` a map from string, ``|x`` a member of oneof x.
Enumerations are written int32, which is the same on the wire."""

_FIELD = re.compile(r"(\d+) (\w+) (\{?)(\w+)\}?(\*?)(?:\|(\w+))?")
_PROTO = descriptor_pb2.FieldDescriptorProto


def file() -> descriptor_pb2.FileDescriptorProto:
    """The schema as protobuf describes it."""
    file = descriptor_pb2.FileDescriptorProto(
        name="plait/tinker_public.proto", package="tinker_public", syntax="proto3"
    )
    for line in re.sub(r"\n\s+", " ", _SCHEMA.strip()).splitlines():
        name, fields = line.split(": ", 1)
        message = file.message_type.add(name=name)
        for field in fields.split(", "):
            _add(message, field)
    return file


def _build() -> dict[str, Any]:
    described, pool = file(), descriptor_pool.DescriptorPool()
    pool.Add(described)
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"tinker_public.{message.name}")
        )
        for message in described.message_type
    }


def _add(message: descriptor_pb2.DescriptorProto, text: str) -> None:
    match = _FIELD.fullmatch(text)
    assert match, text
    number, name, is_map, kind, repeated, oneof = match.groups()
    field = message.field.add(name=name, number=int(number))
    field.label = _PROTO.LABEL_REPEATED if repeated or is_map else _PROTO.LABEL_OPTIONAL
    if is_map:
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _typed(entry.field.add(name="key", number=1, label=_PROTO.LABEL_OPTIONAL), "string")
        _typed(entry.field.add(name="value", number=2, label=_PROTO.LABEL_OPTIONAL), kind)
        _typed(field, f"{message.name}.{entry.name}")
        return
    _typed(field, kind)
    if oneof:
        names = [each.name for each in message.oneof_decl]
        if oneof not in names:
            message.oneof_decl.add(name=oneof)
            names.append(oneof)
        field.oneof_index = names.index(oneof)


def _typed(field: descriptor_pb2.FieldDescriptorProto, kind: str) -> None:
    if kind[0].islower():
        field.type = getattr(_PROTO, f"TYPE_{kind.upper()}")
    else:
        field.type, field.type_name = _PROTO.TYPE_MESSAGE, f".tinker_public.{kind}"


_CLASSES = _build()
ForwardBackwardRequest: Any = _CLASSES["ForwardBackwardRequest"]
ForwardBackwardOutput: Any = _CLASSES["ForwardBackwardOutput"]
SampleResponse: Any = _CLASSES["SampleResponse"]
Tensor: Any = _CLASSES["Tensor"]

FLOAT32, INT64, INT32, BFLOAT16 = 1, 2, 3, 4
"""Types of a tensor's numbers."""
STOPPED, AT_LENGTH = 0, 1
"""Why a sequence ended."""
