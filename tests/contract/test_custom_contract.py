"""A client's own loss at every training engine: as if the client had carried it out itself, which
is a forward pass, its own autograd, and cross-entropy weighted by minus the slopes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import custom_support
import pytest
import torch
from custom_support import SUM, by_hand, made, node, ref
from drive import ADAM, datum, drain, learn, score

from plait.core.custom_graphs import read
from plait.core.custom_losses import CustomLoss
from plait.core.errors import NotFinite, RequestError
from plait.core.ids import OpId, RunId
from plait.core.operations import Datum, ForwardBackward
from plait.core.runs import LoraSpec

A, B = RunId("a"), RunId("b")
N, K = 7, 3
TEXTS = (b"abcdefgh", b"aaaabbbb", b"xyxyxyxy")
OFF = (0.4, -0.3, 0.05, 0.6, -0.1, 0.15, -0.5)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A loss, and what it reads beside log-probs."""

    function: Callable[..., Any]
    inputs: dict[str, Any]
    soft: bool = False

    @property
    def loss(self) -> CustomLoss:
        ranks = {name: torch.tensor(value).ndim for name, value in self.inputs.items()}
        return made(self.function, {"logprobs": 1 + self.soft, **ranks})

    def data(self) -> list[Datum]:
        sent = {k: v if isinstance(v, list | tuple) else [v] for k, v in self.inputs.items()}
        data = [replace(datum(text), inputs=sent) for text in TEXTS]
        if self.soft:
            tops = [tuple((x, x + 1, 7) for x in text[1:]) for text in TEXTS]
            data = [replace(d, target_tokens=top) for d, top in zip(data, tops, strict=True)]
        return data


CASES = {
    "ppo": Case(
        function=custom_support.ppo,
        inputs={"sampled": [-5.0 + x for x in OFF], "advantages": [x - 0.1 for x in OFF]},
    ),
    "soft targets": Case(
        function=custom_support.distillation,
        inputs={"teacher": [[0.1 * i, 0.2, -x] for i, x in enumerate(OFF)], "temperature": 2.0},
        soft=True,
    ),
    "sequence": Case(
        function=custom_support.sequence_level,
        inputs={"reference": [-5.0 - x for x in OFF], "sign": -1.0},
    ),
}


def ready(kit, run_id: RunId = A, seed: int = 1):
    """An engine whose run has learned a little."""
    engine = kit.train()
    engine.create(run_id, LoraSpec(rank=4, seed=seed))
    learn(engine, run_id, b"xyxyxyxy")
    return engine


def by_the_client(engine, case: Case) -> tuple[dict[str, float], tuple[tuple[float, ...], ...]]:
    """As the SDK does it: metrics, and log-probs; its gradient is in the engine."""
    data = case.data()
    bare = [replace(d, inputs={}) for d in data]
    rows = drain(engine.forward(A, bare, adapter=True)).logprobs
    weighted, sums, total = [], {}, 0.0
    for d, row in zip(data, rows, strict=True):
        leaf = torch.tensor(row).reshape(N, -1)
        leaf = (leaf if case.soft else leaf[:, 0]).clone().requires_grad_()
        loss, metrics = case.function(leaf, *map(torch.tensor, case.inputs.values()))
        loss.backward()
        total += float(loss.detach())
        for key, value in metrics.items():
            sums[key] = sums.get(key, 0.0) + float(value.detach())
        weighted.append(replace(d, inputs={"weights": (-leaf.grad).tolist()}))
    drain(engine.forward_backward(A, weighted, "cross_entropy", {}))
    told = {k: v / len(data) if k.endswith(":mean") else v for k, v in sums.items()}
    return {**told, "loss:sum": total}, rows


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_the_client_would_have_done(kit, name: str) -> None:
    case = CASES[name]
    engine, other = ready(kit), ready(kit)
    want, rows = by_the_client(other, case)
    got = drain(engine.forward_backward(A, case.data(), case.loss, {}))
    n = len(TEXTS) * N * (K if case.soft else 1)
    assert got.metrics == pytest.approx({**want, "tokens:sum": n}, rel=1e-5, abs=1e-6)
    for ours, theirs in zip(got.logprobs, rows, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    norms = [each.optim_step(A, ADAM).metrics["grad_norm:mean"] for each in (engine, other)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert norms[0] > 0
    assert score(engine, A) == pytest.approx(score(other, A), abs=1e-4)


def test_in_parts_it_is_the_same(kit) -> None:
    """Chunks of one call: means weigh by data, as the client combines them."""
    case = CASES["ppo"]
    whole, parts = ready(kit), ready(kit)
    data = case.data()
    want = drain(whole.forward_backward(A, data, case.loss, {})).metrics
    chunks = [data[:2], data[2:]]
    got = [drain(parts.forward_backward(A, chunk, case.loss, {})).metrics for chunk in chunks]
    for key, value in want.items():
        weights = [2 / 3, 1 / 3] if key.endswith(":mean") else [1.0, 1.0]
        together = sum(w * metrics[key] for w, metrics in zip(weights, got, strict=True))
        assert together == pytest.approx(value, rel=1e-4, abs=1e-6)
    norms = [each.optim_step(A, ADAM).metrics["grad_norm:mean"] for each in (whole, parts)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def op(run_id: RunId, data: list[Datum], loss: Any) -> ForwardBackward:
    return ForwardBackward(op_id=OpId(run_id), run_id=run_id, seq=1, data=tuple(data), loss=loss)


BAD_INDEX = node("a", "operator.getitem", ref("logprobs"), 99)
FAILING = {
    "an index out of range": ([BAD_INDEX, node("loss", "torch.sum", ref("a"))], RequestError),
    "numbers that run away": (
        [node("a", "operator.truediv", ref("logprobs"), 0.0), node("loss", "torch.sum", ref("a"))],
        NotFinite,
    ),
    "not one number": ([node("loss", "torch.exp", ref("logprobs"))], RequestError),
}


@pytest.mark.parametrize("case", FAILING)
def test_one_that_fails_adds_nothing_and_hurts_nobody(kit, case: str) -> None:
    nodes, kind = FAILING[case]
    bad = read(by_hand(*nodes))
    calm, engine = ready(kit), ready(kit)
    for each in (calm, engine):
        each.create(B, LoraSpec(rank=4, seed=3))
        drain(each.forward_backward(A, [datum()], "cross_entropy", {}))
    alone = drain(calm.forward_backward(B, [datum(b"aaaabbbb")], "cross_entropy", {}))
    failed, theirs = drain(
        engine.forward_backward_many(
            [op(A, [datum()], bad), op(B, [datum(b"aaaabbbb")], "cross_entropy")]
        )
    )
    assert isinstance(failed, kind)
    assert theirs.metrics["loss:sum"] == pytest.approx(alone.metrics["loss:sum"], rel=1e-5)
    with pytest.raises(kind):
        drain(engine.forward_backward(A, [datum()], bad, {}))
    for run_id in (A, B):
        norms = [e.optim_step(run_id, ADAM).metrics["grad_norm:mean"] for e in (calm, engine)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_runs_with_losses_of_their_own_share_a_pass(kit) -> None:
    case = CASES["ppo"]
    alone, engine = ready(kit), ready(kit)
    for each in (alone, engine):
        each.create(B, LoraSpec(rank=8, seed=3))
    simple = read(by_hand(SUM))
    asked = [op(A, case.data(), case.loss), op(B, [datum()], simple)]
    together = drain(engine.forward_backward_many(asked))
    for one, got in zip(asked, together, strict=True):
        want = drain(alone.forward_backward(one.run_id, one.data, one.loss, {}))
        assert got.metrics == pytest.approx(want.metrics, rel=1e-4, abs=1e-5)
        norms = [e.optim_step(one.run_id, ADAM).metrics["grad_norm:mean"] for e in (engine, alone)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_data_that_lack_an_input_are_refused_before_anything(kit) -> None:
    case = CASES["ppo"]
    engine = ready(kit)
    with pytest.raises(RequestError, match="datum 1 has no sampled"):
        drain(engine.forward_backward(A, [case.data()[0], datum()], case.loss, {}))
    assert engine.optim_step(A, ADAM).metrics["grad_norm:mean"] == 0.0


def test_the_same_twice_is_the_same(kit) -> None:
    """What a replay rests on."""
    case = CASES["sequence"]
    scores = []
    for _ in range(2):
        engine = ready(kit)
        drain(engine.forward_backward(A, case.data(), case.loss, {}))
        engine.optim_step(A, ADAM)
        scores.append(score(engine, A))
    assert scores[0] == scores[1]


def test_what_is_not_scored_is_not_seen(kit) -> None:
    engine, other = ready(kit), ready(kit)
    part = replace(datum(b"abcdefgh", mask_from=3), inputs={})
    got = drain(engine.forward_backward(A, [part], read(by_hand(SUM)), {}))
    up = replace(part, inputs={"weights": (-1.0,) * N})
    want = drain(other.forward_backward(A, [up], "cross_entropy", {}))
    assert len(got.logprobs[0]) == N - 3
    assert got.metrics["loss:sum"] == pytest.approx(want.metrics["loss:sum"], rel=1e-5)
    norms = [each.optim_step(A, ADAM).metrics["grad_norm:mean"] for each in (engine, other)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
