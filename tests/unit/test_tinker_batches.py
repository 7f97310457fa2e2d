import json
import math

import numpy as np
import pytest

from plait.core.errors import NotFinite, RequestError
from plait.core.operations import Datum, ForwardResult
from plait.engines.scripted import losses
from plait.service.tinker_api import batches, schema
from plait.service.work import Batch

N = 4


def message(loss: str = "ppo", n_data: int = 1, **config: float):
    out = schema.ForwardBackwardRequest(model_id="m", seq_id=7, loss_fn=loss)
    for name, value in config.items():
        out.loss_fn_config_v2[name].number = value
    for _ in range(n_data):
        datum = out.data.add()
        datum.model_input.add().encoded_text.tokens = np.array([1, 2], "<i4").tobytes()
        datum.model_input.add().encoded_text.tokens = np.array([3, 4], "<i4").tobytes()
        put(datum, target_tokens=np.array([2, 3, 4, 5], "<i8"))
        if loss != "cross_entropy":
            q = np.array([0, -1, -2, -3], "<f4")
            put(datum, logprobs=q, advantages=np.array([0, 1, -1, 2], "<f4"))
    return out


def put(datum, **inputs: np.ndarray) -> None:
    for name, values in inputs.items():
        tensor = datum.loss_fn_inputs[name]
        tensor.dense = values.tobytes()
        tensor.dtype = schema.FLOAT32 if values.dtype.kind == "f" else schema.INT64
        tensor.shape[:] = values.shape


def spans(datum, *lengths: tuple[str, int]) -> None:
    for kind, length in lengths:
        span = datum.loss_fn_input_spans.add()
        getattr(span, kind).length = length


def read(out) -> Batch:
    return batches.read(out.SerializeToString())


def metrics(work: Batch, answer: ForwardResult) -> dict[str, float]:
    return dict(schema.ForwardBackwardOutput.FromString(batches.write(work, answer)).metrics)


def test_a_batch_is_read_with_every_position_scored() -> None:
    work = read(message(clip_high_threshold=1.3))
    assert (work.loss, work.config, work.train) == ("ppo", {"clip_high_threshold": 1.3}, True)
    (datum,) = work.data
    assert datum.input_tokens == [1, 2, 3, 4]
    assert datum.target_tokens == [2, 3, 4, 5]
    assert datum.mask == [True] * N
    assert datum.inputs == {"logprobs": [0, -1, -2, -3], "advantages": [0, 1, -1, 2]}


def test_the_newer_form_of_options_wins() -> None:
    out = message(beta=0.5)
    out.loss_fn_config["beta"] = 0.1
    out.loss_fn_config["kl_coef"] = 0.2
    assert read(out).config == {"beta": 0.5, "kl_coef": 0.2}
    out.loss_fn_config_v2["loss_id"].text = "l-1"
    with pytest.raises(RequestError, match="loss_id is 'l-1': give a number"):
        read(out)


def test_soft_targets_are_read_and_log_probs_come_back_in_their_shape() -> None:
    out = message("cross_entropy", 3)
    for datum, k in zip(out.data, (2, 2, 3), strict=True):
        targets = np.arange(N * k, dtype="<i8").reshape(N, k)
        put(datum, target_tokens=targets, weights=np.full((N, k), 0.5, "<f4"))
    work = read(out)
    assert work.data[0].target_tokens == [[0, 1], [2, 3], [4, 5], [6, 7]]
    rows = tuple(tuple(-float(i) for i in range(N * k)) for k in (2, 2, 3))
    answer = batches.write(work, ForwardResult(logprobs=rows))
    told = schema.ForwardBackwardOutput.FromString(answer)
    assert [
        (r.num_datums, list(r.fields["logprobs"].trailing_shape)) for r in told.loss_fn_outputs
    ] == [
        (2, [2]),
        (1, [3]),
    ]
    assert told.metrics["loss:sum"] == pytest.approx(
        0.5 * sum(i for row in rows for i in map(abs, row))
    )
    as_json = batches.as_json(answer)
    assert [row["logprobs"]["shape"] for row in as_json["loss_fn_outputs"]] == [
        [4, 2],
        [4, 2],
        [4, 3],
    ]


@pytest.mark.parametrize(
    ("loss", "config"),
    [
        ("importance_sampling", {}),
        ("gspo", {"clip_low_threshold": 0.5}),
        ("dro", {"beta": 0.1}),
        ("cross_entropy", {}),
    ],
)
def test_a_forward_pass_is_told_its_loss(loss: str, config: dict[str, float]) -> None:
    out = message(loss, 2, **config)
    out.forward_only = True
    work = read(out)
    assert not work.train
    rows = ((-0.5, -1.25, -2.5, -2.75), (-1.0, -1.5, -1.75, -3.5))
    chosen, want = losses.choose(loss, config), 0.0
    for datum, row in zip(work.data, rows, strict=True):
        inputs = [{k: v[i] for k, v in datum.inputs.items()} for i in range(N)]
        want += sum(term.loss for term in chosen.of(row, inputs))
    told = metrics(work, ForwardResult(logprobs=rows, metrics={"tokens:sum": 8.0}))
    assert told["loss:sum"] == pytest.approx(want, rel=1e-6)
    assert told["tokens:sum"] == 8.0
    assert all(len(name.split(":")) == 2 for name in told)


def test_a_forward_pass_lacking_an_input_says_which() -> None:
    out = message("ppo")
    del out.data[0].loss_fn_inputs["advantages"]
    work = read(out)
    with pytest.raises(RequestError, match="'advantages'"):
        batches.write(work, ForwardResult(logprobs=((-1.0,) * N,)))


def test_padding_does_not_count_as_a_difference_from_the_sampler() -> None:
    rows = ((-9.0, -1.0, -2.5, -3.0),)
    engine = {"loss:sum": 1.0, "logprob_diff:max": 9.0, "kl_sampler:mean": 8.0}
    told = metrics(read(message()), ForwardResult(logprobs=rows, metrics=engine))
    assert told["logprob_diff:max"] == pytest.approx(0.5)
    assert told["kl_sampler:mean"] == pytest.approx((np.exp(-0.5) - 1 + 0.5) / 3, rel=1e-5)


def test_numbers_that_json_does_not_hold_are_never_an_answer() -> None:
    """Older clients read JSON: an answer that cannot be written would be asked for for ever."""
    out = message(loss="cispo")
    put(out.data[0], logprobs=np.full(N, -800.0, "<f4"))
    body = batches.write(read(out), ForwardResult(logprobs=((-1.0,) * N,), metrics={"loss:sum": 1}))
    told = json.loads(json.dumps(batches.as_json(body), allow_nan=False))
    assert told["metrics"]["kl_sampler:mean"] > 1e300

    out = message(loss="importance_sampling")
    put(out.data[0], logprobs=np.full(N, -800.0, "<f4"))
    out.forward_only = True
    with pytest.raises(NotFinite, match="the loss is not finite"):
        batches.write(read(out), ForwardResult(logprobs=((-1.0,) * N,)))
    out = message(loss="cross_entropy")
    out.forward_only = True
    with pytest.raises(NotFinite, match="the log-probs are not finite"):
        batches.write(read(out), ForwardResult(logprobs=((math.nan,) * N,)))


def test_spans_leave_prompt_tokens_out_of_stable_reinforce() -> None:
    out = message("stable_reinforce")
    with pytest.raises(RequestError, match="no provenance spans"):
        read(out)
    spans(out.data[0], ("prompt_tokens", 1), ("sampled_tokens", 2), ("prompt_tokens", 1))
    assert read(out).data[0].inputs["weights"] == [0, 1, 1, 0]
    put(out.data[0], weights=np.array([2, 2, 3, 2], "<f4"))
    assert read(out).data[0].inputs["weights"] == [0, 2, 3, 0]
    spans(out.data[0], ("sampled_tokens", 1))
    with pytest.raises(RequestError, match="cover 5 of 4"):
        read(out)
    spans(out.data[0], ("sampled_tokens", 2**40))
    with pytest.raises(RequestError, match="length 1099511627776"):
        read(out)


def change(**inputs: np.ndarray):
    out = message()
    put(out.data[0], **inputs)
    return out


def image():
    out = message()
    out.data[0].model_input.add().image.data = b"png"
    return out


def nothing():
    out = message()
    del out.data[0].loss_fn_inputs["target_tokens"]
    return out


@pytest.mark.parametrize(
    ("out", "why"),
    [
        (change(advantages=np.array([0, np.nan, 1, 1], "<f4")), "advantages holds a number"),
        (change(logprobs=np.array([0, -np.inf, 1, 1], "<f4")), "logprobs holds a number"),
        (change(target_tokens=np.zeros(4, "<f4")), "target_tokens are float32"),
        (change(target_tokens=np.zeros((4, 1025), "<i8")), "1025 targets per position"),
        (image(), "a chunk of image"),
        (nothing(), "no target_tokens"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(out, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        read(out)


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(RequestError, match="no ForwardBackwardRequest"):
        batches.parse(b"\xff\xff\xff")


def test_the_json_of_older_clients_is_the_same_request() -> None:
    told = {
        "model_id": "m",
        "seq_id": 7,
        "forward_backward_input": {
            "loss_fn": "ppo",
            "loss_fn_config": {"clip_high_threshold": 1.3},
            "data": [
                {
                    "model_input": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3, 4]}]},
                    "loss_fn_inputs": {
                        "target_tokens": {"data": [2, 3, 4, 5], "dtype": "int64", "shape": [4]},
                        "logprobs": {"data": [0, -1, -2, -3], "dtype": "float32"},
                        "advantages": {"data": [0, 1, -1, 2], "dtype": "float32"},
                    },
                }
            ],
        },
        "unheard_of": 1,
    }
    body = batches.from_json(told, forward_only=False)
    assert batches.parse(body).seq_id == 7
    assert batches.read(body) == read(message(clip_high_threshold=1.3))
    moved = {**told, "forward_input": told["forward_backward_input"]}
    del moved["forward_backward_input"]
    assert not batches.read(batches.from_json(moved, forward_only=True)).train
    for wrong in ({"seq_id": "x"}, {"seq_id": 2**40}, {"forward_backward_input": {"loss_fn": 3}}):
        with pytest.raises(RequestError, match="no forward_backward request"):
            batches.from_json({**told, **wrong}, forward_only=False)


def test_an_empty_batch_is_answered() -> None:
    assert metrics(
        Batch(data=(), loss="cross_entropy", config={}, train=False), ForwardResult(logprobs=())
    ) == {"loss:sum": 0.0}


def test_ragged_data_are_kept_apart() -> None:
    data = tuple(
        Datum(input_tokens=[1] * n, target_tokens=[2] * n, mask=[True] * n) for n in (1, 3)
    )
    work = Batch(data=data, loss="cross_entropy", config={}, train=True)
    told = batches.as_json(
        batches.write(work, ForwardResult(logprobs=((-1.0,), (-2.0, -3.0, -4.0))))
    )
    assert [row["logprobs"]["data"] for row in told["loss_fn_outputs"]] == [[-1], [-2, -3, -4]]
