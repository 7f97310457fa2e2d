"""Batches: data for forward and backward passes, from protobuf (or the older JSON) and back.

Every position is scored: a client gets one log-prob for each of its targets, and weighs them. So
the trainer's own comparison with the sampler would count prompt tokens, whose ``logprobs`` are
padding, which is exactly 0; it is made again here over the tokens that were sampled.

Provenance spans say which tokens were sampled; only ``stable_reinforce``, whose penalty would bear
on prompt tokens too, reads them.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from plait.core.custom_losses import CUSTOM
from plait.core.errors import NotFinite, RequestError
from plait.core.operations import Datum, ForwardResult
from plait.engines.scripted import losses as formulas
from plait.service.tinker_api import schema, tensors
from plait.service.tinker_api.tensors import Array
from plait.service.work import Batch

LOSS_BY_SPANS = "stable_reinforce"
MAX_METRIC = sys.float_info.max
"""How far a sampler is from its trainer can be more than a number holds."""
MAX_K = 1024
"""Targets of one position: more are no distillation but a mistake (a vocabulary as targets)."""


def parse(body: bytes) -> Any:
    """The message that a body says; RequestError if it is none."""
    try:
        return schema.ForwardBackwardRequest.FromString(body)
    except DecodeError as error:
        raise RequestError(f"the body is no ForwardBackwardRequest ({error})") from None


def read(body: bytes) -> Batch:
    """The work that a stored body asks for."""
    message = parse(body)
    tensors.check_room(t for datum in message.data for t in datum.loss_fn_inputs.values())
    loss_id = ""
    config: dict[str, float] = dict(message.loss_fn_config)
    for key, value in message.loss_fn_config_v2.items():
        if (message.loss_fn, key) == (CUSTOM, "loss_id"):
            loss_id = value.text
            continue
        if value.WhichOneof("value") != "number":
            raise RequestError(f"loss option {key} is {value.text[:60]!r}: give a number")
        config[key] = value.number
    if message.loss_fn == CUSTOM:
        _check_custom(message, config, loss_id)
    return Batch(
        data=tuple(_datum(i, datum, message.loss_fn) for i, datum in enumerate(message.data)),
        loss=message.loss_fn,
        config=config,
        train=not message.forward_only,
        loss_id=loss_id,
    )


def _check_custom(message: Any, config: Mapping[str, float], loss_id: str) -> None:
    if message.forward_only:
        raise RequestError("a forward pass knows no custom loss: ask for cross_entropy")
    if not loss_id or config:
        raise RequestError("loss custom takes one option: loss_id, which create_custom_loss gives")


def _datum(i: int, datum: Any, loss: str) -> Datum:
    tokens = _tokens(i, datum.model_input)
    inputs = {
        name: tensors.read(f"datum {i}: {name}", tensor)
        for name, tensor in datum.loss_fn_inputs.items()
    }
    targets = inputs.pop("target_tokens", None)
    if targets is None:
        raise RequestError(f"datum {i} has no target_tokens: give the token after each position")
    if targets.dtype.kind != "i":
        raise RequestError(f"datum {i}: target_tokens are {targets.dtype.name}: give int64")
    if targets.ndim == 2 and targets.shape[1] > MAX_K:
        raise RequestError(f"datum {i}: {targets.shape[1]} targets per position: at most {MAX_K}")
    for name, values in inputs.items():
        if loss != CUSTOM and values.dtype.kind == "f" and not np.isfinite(values).all():
            raise RequestError(f"datum {i}: {name} holds a number that is not finite")
    if loss == LOSS_BY_SPANS:
        inputs["weights"] = _sampled(i, datum.loss_fn_input_spans, len(targets), inputs)
    return Datum(
        input_tokens=tokens.tolist(),
        target_tokens=targets.tolist(),
        mask=[True] * len(targets),
        inputs={name: values.tolist() for name, values in inputs.items()},
    )


def _tokens(i: int, chunks: Sequence[Any]) -> Array:
    parts = []
    for chunk in chunks:
        kind = chunk.WhichOneof("chunk")
        if kind != "encoded_text":
            raise RequestError(
                f"datum {i} has a chunk of {kind}: this server takes text tokens only"
            )
        if len(chunk.encoded_text.tokens) % 4:
            raise RequestError(f"datum {i}: its tokens are not whole int32")
        parts.append(np.frombuffer(chunk.encoded_text.tokens, dtype="<i4"))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)


def _sampled(i: int, spans: Sequence[Any], n: int, inputs: Mapping[str, Array]) -> Array:
    """1 where a target was sampled, 0 where it was given, times the weights if there are any."""
    if not spans:
        raise RequestError(
            f"datum {i} has no provenance spans, which {LOSS_BY_SPANS} needs "
            "(Datum.with_provenance); or use loss_fn=importance_sampling"
        )
    pieces = []
    for span in spans:
        kind = span.WhichOneof("span")
        part = span.sampled_tokens if kind == "sampled_tokens" else span.prompt_tokens
        if not 0 <= part.length <= n:
            raise RequestError(f"datum {i} has a provenance span of length {part.length}")
        pieces.append(np.full(part.length, float(kind == "sampled_tokens"), dtype=np.float32))
    kept = np.concatenate(pieces)
    if len(kept) != n:
        raise RequestError(f"datum {i}: its provenance spans cover {len(kept)} of {n} targets")
    weights = inputs.get("weights")
    return kept if weights is None or weights.shape != kept.shape else kept * weights


def write(work: Batch, answer: ForwardResult) -> bytes:
    """The ForwardBackwardOutput: log-probs shaped like the targets, metrics named by reduction.

    NotFinite if those of a forward pass are no numbers, which JSON has no room for (the engine
    makes no gradient of them). A metric too large for a number is the largest that there is.
    """
    out = schema.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    arrays = [
        np.asarray(row, dtype="<f4").reshape(np.shape(datum.target_tokens))
        for datum, row in zip(work.data, answer.logprobs, strict=True)
    ]
    start = 0
    while start < len(arrays):
        # One record holds arrays of one trailing shape: data of another K begin a new one.
        trailing = arrays[start].shape[1:]
        end = start + 1
        while end < len(arrays) and arrays[end].shape[1:] == trailing:
            end += 1
        _record(out.loss_fn_outputs.add(), arrays[start:end], trailing)
        start = end
    if not all(np.isfinite(array).all() for array in arrays):
        raise NotFinite("the log-probs are not finite: lower the learning rate, or load a version")
    metrics = dict(answer.metrics)
    with np.errstate(over="ignore"):  # what is not finite is found below
        if "loss:sum" not in metrics:
            metrics["loss:sum"] = _loss(work, arrays)
        if not work.loss_id:  # which reads what it likes under that name
            metrics.update(_against_sampler(work, arrays))
    if not math.isfinite(metrics["loss:sum"]):
        raise NotFinite("the loss is not finite: check advantages and log-probs")
    for name, value in metrics.items():
        out.metrics[name] = min(max(value, -MAX_METRIC), MAX_METRIC)
    return bytes(out.SerializeToString())


def _record(record: Any, arrays: Sequence[Array], trailing: tuple[int, ...]) -> None:
    record.type_tag, record.num_datums = "ArrayRecord", len(arrays)
    field = record.fields["logprobs"]
    field.data = b"".join(array.tobytes() for array in arrays)
    field.offsets = np.cumsum([0, *(array.nbytes for array in arrays)], dtype="<i8").tobytes()
    field.dtype = schema.FLOAT32
    field.trailing_shape.extend(trailing)


def _loss(work: Batch, arrays: Sequence[Array]) -> float:
    """What a forward pass would have cost: the engine does not say."""
    if work.loss == "cross_entropy":
        weights = [np.asarray(datum.inputs.get("weights", 1.0)) for datum in work.data]
        return -float(sum((w * a).sum() for w, a in zip(weights, arrays, strict=True)))
    assert isinstance(work.loss, str), "no forward pass has a custom loss"
    chosen = formulas.choose(work.loss, work.config)
    total = 0.0
    for datum, array in zip(work.data, arrays, strict=True):
        if missing := [name for name in chosen.choice.needed if name not in datum.inputs]:
            raise RequestError(f"loss {work.loss} needs the input {missing[0]!r} of every datum")
        columns = [list(values) for values in datum.inputs.values()]
        rows = [
            dict(zip(datum.inputs, map(float, at), strict=True))
            for at in zip(*columns, strict=True)
        ]
        total += sum(term.loss for term in chosen.of(array.tolist(), rows))
    return total


def _against_sampler(work: Batch, arrays: Sequence[Array]) -> dict[str, float]:
    """How far the log-probs are from those that the tokens were sampled with."""
    if not work.data or any("logprobs" not in datum.inputs for datum in work.data):
        return {}
    then = np.concatenate([np.asarray(datum.inputs["logprobs"]).ravel() for datum in work.data])
    now = np.concatenate([array.ravel() for array in arrays]).astype(np.float64)
    if not (kept := then != 0).any() or then.shape != now.shape:
        return {}
    log_ratio = (now - then)[kept]
    return {
        "kl_sampler:mean": float((np.expm1(log_ratio) - log_ratio).mean()),
        "logprob_diff:max": float(np.abs(log_ratio).max()),
    }


def from_json(told: Mapping[str, Any], *, forward_only: bool) -> bytes:
    """The protobuf body that says the same as a JSON body of an older client."""
    message = schema.ForwardBackwardRequest(forward_only=forward_only)
    try:
        asked = told.get("forward_backward_input") or told["forward_input"]
        message.model_id, message.seq_id = told["model_id"], told["seq_id"]
        message.loss_fn = asked["loss_fn"]
        for key, value in (asked.get("loss_fn_config") or {}).items():
            if isinstance(value, str):
                message.loss_fn_config_v2[key].text = value
            else:
                message.loss_fn_config[key] = value
        for i, datum in enumerate(asked["data"]):
            _datum_from_json(message.data.add(), i, datum)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RequestError(f"the body is no forward_backward request ({error!r})") from None
    return bytes(message.SerializeToString())


def _datum_from_json(message: Any, i: int, told: Mapping[str, Any]) -> None:
    for chunk in told["model_input"]["chunks"]:
        if (kind := chunk.get("type", "encoded_text")) != "encoded_text":
            raise RequestError(
                f"datum {i} has a chunk of {kind}: this server takes text tokens only"
            )
        tokens = np.asarray(chunk["tokens"], dtype="<i4").tobytes()
        message.model_input.add().encoded_text.tokens = tokens
    for name, tensor in told["loss_fn_inputs"].items():
        message.loss_fn_inputs[name].CopyFrom(tensors.from_json(f"datum {i}: {name}", tensor))


def as_json(body: bytes) -> dict[str, Any]:
    """A stored ForwardBackwardOutput as older clients read it."""
    out = schema.ForwardBackwardOutput.FromString(body)
    rows: list[dict[str, Any]] = []
    for record in out.loss_fn_outputs:
        for name, field in record.fields.items():
            offsets = np.frombuffer(field.offsets, dtype="<i8")
            for start, end in pairwise(offsets):
                values = np.frombuffer(field.data[start:end], dtype="<f4")
                shape = [-1, *field.trailing_shape]
                told = {
                    "data": values.tolist(),
                    "dtype": "float32",
                    "shape": list(values.reshape(shape).shape),
                }
                rows.append({name: told})
    return {
        "loss_fn_output_type": out.loss_fn_output_type,
        "loss_fn_outputs": rows,
        # JSON has no word for what is no number, which a client's own metric may be.
        "metrics": {name: value for name, value in out.metrics.items() if math.isfinite(value)},
    }
