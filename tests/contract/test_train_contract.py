"""The contract of training engines (``engines/protocol.py``), one suite for all of them.

What losses come to is in ``test_losses_contract``.
"""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from drive import ADAM, datum, drain, learn, score

from plait.core.errors import EngineError, NotFinite, RequestError
from plait.core.ids import OpId, RunId
from plait.core.operations import ForwardBackward, ForwardResult
from plait.core.runs import LoraSpec

A, B = RunId("a"), RunId("b")
LORA_A, LORA_B = LoraSpec(rank=4, seed=1), LoraSpec(rank=8, seed=2)
NAN = float("nan")


def made(kit, run_id: RunId = A, lora: LoraSpec = LORA_A):
    engine = kit.train()
    engine.create(run_id, lora)
    return engine


def test_version_0_is_the_base_and_training_changes_it(kit) -> None:
    engine = made(kit)
    base = drain(engine.forward(A, [datum()], adapter=False)).logprobs
    assert drain(engine.forward(A, [datum()], adapter=True)).logprobs[0] == pytest.approx(base[0])
    learn(engine, A, b"abcdefgh", n_steps=3)
    tuned = drain(engine.forward(A, [datum()], adapter=True)).logprobs
    assert tuned[0] != pytest.approx(base[0])
    assert sum(tuned[0]) > sum(base[0])
    assert drain(engine.forward(A, [datum()], adapter=False)).logprobs == base


def test_a_seed_determines_the_run(kit) -> None:
    scores = []
    for seed in (5, 5, 6):
        engine = made(kit, lora=LoraSpec(rank=4, seed=seed))
        learn(engine, A, b"abcdefgh", n_steps=3)
        scores.append(score(engine, A))
    assert scores[0] == scores[1] != scores[2]


def test_runs_are_isolated_however_they_interleave(kit) -> None:
    alone_a, alone_b = made(kit), made(kit, B, LORA_B)
    learn(alone_a, A, b"aaaabbbb", n_steps=4)
    learn(alone_b, B, b"xyxyxyxy", n_steps=2)
    engine = made(kit)
    engine.create(B, LORA_B)
    versions = []
    for step in range(4):
        drain(engine.forward_backward(A, [datum(b"aaaabbbb")], "cross_entropy", {}))
        if step in (1, 2):
            # The second run comes between the first one's gradient and its step.
            drain(engine.forward_backward(B, [datum(b"xyxyxyxy")], "cross_entropy", {}))
            versions.append(engine.optim_step(B, ADAM).version)
        engine.optim_step(A, ADAM)
    assert score(engine, A) == score(alone_a, A)
    assert score(engine, B) == score(alone_b, B)
    assert versions == [1, 2]


def test_micro_batches_of_two_runs_may_alternate(kit) -> None:
    alone = made(kit)
    batch = [datum(b"aaaabbbb"), datum(b"ccccdddd")]
    drain(alone.forward_backward(A, batch, "cross_entropy", {}))
    alone.optim_step(A, ADAM)
    engine = made(kit)
    engine.create(B, LORA_B)
    work = engine.forward_backward(A, batch, "cross_entropy", {})
    next(work)
    learn(engine, B, b"xyxyxyxy")
    drain(work)
    engine.optim_step(A, ADAM)
    assert score(engine, A) == score(alone, A)


def test_gradients_accumulate(kit) -> None:
    one, two = made(kit), made(kit)
    batch = [datum(b"aaaabbbb"), datum(b"ccccdddd")]
    drain(one.forward_backward(A, batch, "cross_entropy", {}))
    for item in batch:
        drain(two.forward_backward(A, [item], "cross_entropy", {}))
    norms = [engine.optim_step(A, ADAM).metrics["grad_norm:mean"] for engine in (one, two)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert norms[0] > 0


def test_a_step_clears_the_gradient(kit) -> None:
    engine = made(kit)
    learn(engine, A, b"aaaabbbb")
    plain = engine.optim_step(A, replace(ADAM, beta1=0.0))
    assert plain.metrics["grad_norm:mean"] == 0.0


def test_adam_corrects_its_bias_by_the_runs_own_counter(kit) -> None:
    """Under a steady gradient every step moves the weights equally far, whoever steps between."""
    # So small a rate that the gradient stays as it is; so large an eps that A, whose gradient
    # grows from zero, stays put.
    adam = replace(ADAM, learning_rate=1e-6, eps=1e-3)
    engine = made(kit)
    engine.create(B, LORA_B)
    moved = []
    for _ in range(5):
        drain(engine.forward_backward(A, [datum()], "cross_entropy", {}))
        moved.append(engine.optim_step(A, adam).metrics["update_norm:mean"])
        learn(engine, B, b"xyxyxyxy")
    assert moved == pytest.approx([moved[0]] * 5, rel=0.05)
    assert moved[0] > 0


def test_clipping_bounds_the_gradient(kit) -> None:
    # eps so large that Adam's step is proportional to the gradient.
    adam = replace(ADAM, eps=1e6, learning_rate=1e6)
    moved = []
    for clip in (0.0, 1e-3):
        engine = made(kit)
        before = score(engine, A)
        drain(engine.forward_backward(A, [datum()], "cross_entropy", {}))
        engine.optim_step(A, replace(adam, grad_clip_norm=clip))
        moved.append(max(abs(x - y) for x, y in zip(score(engine, A), before, strict=True)))
    assert 0 < moved[1] < 0.5 * moved[0]


def test_save_and_load_are_bit_exact_and_continue_equally(kit, tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    first.mkdir(), again.mkdir()
    engine = made(kit)
    learn(engine, A, b"aaaabbbb", n_steps=3)
    engine.save(A, str(first), optimizer=True)
    other = kit.train()
    other.load(A, str(first), optimizer=True)
    other.save(A, str(again), optimizer=True)
    for file in sorted(first.iterdir()):
        assert (again / file.name).read_bytes() == file.read_bytes(), file.name
    assert score(other, A) == score(engine, A)
    for each in (engine, other):
        learn(each, A, b"ccccdddd", n_steps=2)
    assert score(other, A) == score(engine, A)
    drain(other.forward_backward(A, [datum()], "cross_entropy", {}))
    assert other.optim_step(A, ADAM).version == 6


def test_load_without_the_optimizer_starts_adam_anew(kit, tmp_path: Path) -> None:
    engine = made(kit)
    learn(engine, A, b"aaaabbbb", n_steps=3)
    engine.save(A, str(tmp_path), optimizer=True)
    other = kit.train()
    other.load(A, str(tmp_path), optimizer=False)
    assert score(other, A) == score(engine, A)
    for each in (engine, other):
        learn(each, A, b"ccccdddd")
    assert score(other, A) != score(engine, A)


def test_load_replaces_a_pending_gradient(kit, tmp_path: Path) -> None:
    engine = made(kit)
    engine.save(A, str(tmp_path), optimizer=True)
    drain(engine.forward_backward(A, [datum()], "cross_entropy", {}))
    engine.load(A, str(tmp_path), optimizer=True)
    assert engine.optim_step(A, ADAM).metrics["grad_norm:mean"] == 0.0


def bad_batch(bad: float):
    good = {"logprobs": (-1.0,) * 7, "advantages": (1.0,) * 7}
    return [datum(**good), datum(**{**good, "advantages": (1.0,) * 6 + (bad,)})]


@pytest.mark.parametrize("bad", [NAN, float("inf")])
def test_a_failed_forward_backward_leaves_the_gradient(kit, bad: float) -> None:
    calm, engine = made(kit), made(kit)
    for each in (calm, engine):
        drain(each.forward_backward(A, [datum(b"aaaabbbb")], "cross_entropy", {}))
    with pytest.raises((EngineError, RequestError)):
        drain(engine.forward_backward(A, bad_batch(bad), "importance_sampling", {}))
    for each in (calm, engine):
        each.optim_step(A, ADAM)
    assert score(engine, A) == score(calm, A)


def test_an_abandoned_forward_backward_leaves_the_gradient(kit) -> None:
    calm, engine = made(kit), made(kit)
    for each in (calm, engine):
        drain(each.forward_backward(A, [datum(b"aaaabbbb")], "cross_entropy", {}))
    work = engine.forward_backward(A, [datum(b"xyxyxyxy"), datum(b"ccccdddd")], "cross_entropy", {})
    next(work)
    work.close()
    for each in (calm, engine):
        each.optim_step(A, ADAM)
    assert score(engine, A) == score(calm, A)


def test_a_gradient_that_no_step_can_be_made_of_is_not_added(kit) -> None:
    """Its numbers may all be finite where their norm is not: the run's next step succeeds."""
    engine = made(kit)

    def add_larger_ones() -> None:
        for exponent in range(310):
            data = [datum(weights=(10.0**exponent,) * 7)]
            drain(engine.forward_backward(A, data, "cross_entropy", {}))

    with pytest.raises(NotFinite):
        add_larger_ones()
    assert engine.optim_step(A, ADAM).metrics["grad_norm:mean"] > 1e18


def test_a_nan_learning_rate_changes_nothing(kit) -> None:
    calm, engine = made(kit), made(kit)
    for each in (calm, engine):
        drain(each.forward_backward(A, [datum()], "cross_entropy", {}))
    with pytest.raises((EngineError, RequestError)):
        engine.optim_step(A, replace(ADAM, learning_rate=NAN))
    results = [each.optim_step(A, ADAM) for each in (calm, engine)]
    assert results[0] == results[1]
    assert score(engine, A) == score(calm, A)


@pytest.mark.parametrize("exponent", [10, 20, 22, 30, 37, 40, 155, 160, 300])
def test_a_step_that_is_made_can_be_told(kit, exponent: int) -> None:
    engine = made(kit)
    drain(engine.forward_backward(A, [datum()], "cross_entropy", {}))
    try:
        done = engine.optim_step(A, replace(ADAM, learning_rate=10.0**exponent))
    except NotFinite:
        done = engine.optim_step(A, ADAM)
    assert all(map(math.isfinite, done.metrics.values())), done.metrics


def test_an_unknown_loss_is_refused_and_the_run_lives_on(kit) -> None:
    engine = made(kit)
    with pytest.raises(RequestError):
        drain(engine.forward_backward(A, [datum()], "no_such_loss", {}))
    with pytest.raises(RequestError):
        drain(engine.forward_backward(A, [datum()], "cross_entropy", {"no_such_option": 1.0}))
    learn(engine, A, b"aaaabbbb")


@pytest.mark.parametrize(
    "batch",
    [
        [],
        [replace(datum(), target_tokens=(1, 2))],
        [replace(datum(), mask=(True,))],
        [replace(datum(), inputs={"weights": (1.0,)})],
        [replace(datum(), input_tokens=(10**9,) * 7)],
    ],
    ids=["empty", "targets", "mask", "inputs", "ids"],
)
def test_malformed_batches_are_refused(kit, batch) -> None:
    engine = made(kit)
    with pytest.raises(RequestError):
        drain(engine.forward_backward(A, batch, "cross_entropy", {}))
    with pytest.raises(RequestError):
        drain(engine.forward(A, batch, adapter=True))


def test_missing_loss_inputs_are_refused(kit) -> None:
    with pytest.raises(RequestError):
        drain(made(kit).forward_backward(A, [datum()], "ppo", {}))


def test_values_outside_the_mask_are_not_read(kit) -> None:
    clean, dirty = made(kit), made(kit)
    for engine, first in ((clean, 0.0), (dirty, NAN)):
        inputs = {"logprobs": (first,) + (-2.0,) * 6, "advantages": (first,) + (1.0,) * 6}
        drain(engine.forward_backward(A, [datum(mask_from=1, **inputs)], "importance_sampling", {}))
        engine.optim_step(A, ADAM)
    assert score(dirty, A) == score(clean, A)


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "gspo"])
def test_an_advantage_moves_the_policy_its_way(kit, loss: str) -> None:
    for advantage, more in ((1.0, True), (-1.0, False)):
        engine = made(kit)
        before = drain(engine.forward(A, [datum()], adapter=True)).logprobs[0]
        item = datum(logprobs=before, advantages=(advantage,) * 7)
        result = drain(engine.forward_backward(A, [item], loss, {}))
        assert result.metrics["loss:sum"] == pytest.approx(-7 * advantage, rel=1e-4)
        engine.optim_step(A, ADAM)
        after = drain(engine.forward(A, [datum()], adapter=True)).logprobs[0]
        assert (sum(after) > sum(before)) is more


def test_ppo_gives_no_gradient_beyond_its_clip(kit) -> None:
    engine = made(kit)
    now = drain(engine.forward(A, [datum()], adapter=True)).logprobs[0]
    item = datum(logprobs=tuple(x - 1.0 for x in now), advantages=(1.0,) * 7)
    drain(engine.forward_backward(A, [item], "ppo", {}))
    assert engine.optim_step(A, ADAM).metrics["grad_norm:mean"] == 0.0


def test_log_probs_come_only_from_masked_positions_in_order(kit) -> None:
    engine = made(kit)
    whole = drain(engine.forward(A, [datum()], adapter=True)).logprobs[0]
    tail, none = datum(mask_from=4), datum(mask_from=99)
    rows = drain(engine.forward(A, [tail, none, datum()], adapter=True)).logprobs
    assert [len(row) for row in rows] == [3, 0, 7]
    assert rows[0] == pytest.approx(whole[4:], abs=1e-4)
    assert rows[2] == pytest.approx(whole, abs=1e-4)


def test_every_micro_batch_is_reported(kit) -> None:
    engine = made(kit)
    batch = [datum(b"aaaabbbb"), datum(b"cccc")]
    steps = list(engine.forward_backward(A, batch, "cross_entropy", {}))
    assert sum(step.n_tokens for step in steps) == 10
    assert all(step.tokens_by_run == {A: step.n_tokens} for step in steps)
    assert not any(step.forward_only for step in steps)
    assert all(step.forward_only for step in engine.forward(A, batch, adapter=True))


def gradient(run_id: RunId, batch, loss: str = "cross_entropy") -> ForwardBackward:
    op_id = OpId(f"{run_id}/gradient")
    return ForwardBackward(op_id=op_id, run_id=run_id, seq=1, data=tuple(batch), loss=loss)


IN_COMPANY = (
    gradient(A, [datum(b"aaaabbbb"), datum(b"ccccdddd")]),
    gradient(B, [datum(b"xyxyxyxy", logprobs=(-2.0,) * 7, advantages=(1.0,) * 7)], "ppo"),
)


def test_gradients_in_company_are_those_of_each_run_alone(kit) -> None:
    apart, together = made(kit), made(kit)
    for engine in (apart, together):
        engine.create(B, LORA_B)
    want = [drain(apart.forward_backward(o.run_id, o.data, o.loss, {})) for o in IN_COMPANY]
    work = together.forward_backward_many(IN_COMPANY)
    tokens = dict.fromkeys((A, B), 0)
    while True:
        try:
            step = next(work)
        except StopIteration as end:
            outcomes = end.value
            break
        assert step.n_tokens == sum(step.tokens_by_run.values())
        for run_id, n in step.tokens_by_run.items():
            tokens[run_id] += n
    assert tokens == {A: 14, B: 7}
    for got, result in zip(outcomes, want, strict=True):
        assert got.metrics == pytest.approx(result.metrics, rel=1e-5)
        for a, b in zip(got.logprobs, result.logprobs, strict=True):
            assert a == pytest.approx(b, abs=1e-5)
    for run_id in (A, B):
        norms = [e.optim_step(run_id, ADAM).metrics["grad_norm:mean"] for e in (apart, together)]
        assert norms[1] == pytest.approx(norms[0], rel=1e-5)
        assert norms[0] > 0
        assert score(together, run_id) == pytest.approx(score(apart, run_id), abs=1e-4)


@pytest.mark.parametrize(
    "bad",
    [
        gradient(B, [replace(datum(), input_tokens=(10**9,) * 7)]),
        gradient(B, [datum()], "no_such_loss"),
        gradient(
            B,
            [datum(logprobs=(-1e4,) + (-2.0,) * 6, advantages=(1.0,) * 7)],
            "importance_sampling",
        ),
        gradient(RunId("nobody"), [datum()]),
    ],
    ids=["ids", "loss", "infinite", "nobody"],
)
def test_a_failure_in_company_is_one_runs_alone(kit, bad: ForwardBackward) -> None:
    apart, together = made(kit), made(kit)
    together.create(B, LORA_B)
    drain(apart.forward_backward(A, IN_COMPANY[0].data, "cross_entropy", {}))
    failed, good = drain(together.forward_backward_many([bad, IN_COMPANY[0]]))
    assert isinstance(failed, NotFinite if "sampling" in bad.loss else RequestError)
    assert isinstance(good, ForwardResult)
    norms = [e.optim_step(A, ADAM).metrics["grad_norm:mean"] for e in (apart, together)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    assert together.optim_step(B, ADAM).metrics["grad_norm:mean"] == 0.0


def test_gradients_in_company_that_are_given_up_add_nothing(kit) -> None:
    engine = made(kit)
    engine.create(B, LORA_B)
    work = engine.forward_backward_many(IN_COMPANY)
    next(work)
    work.close()
    for run_id in (A, B):
        assert engine.optim_step(run_id, ADAM).metrics["grad_norm:mean"] == 0.0


def test_a_run_keeps_itself_no_company(kit) -> None:
    with pytest.raises(RequestError, match="twice"):
        drain(made(kit).forward_backward_many([IN_COMPANY[0]] * 2))


def test_runs_come_and_go(kit) -> None:
    engine = kit.train()
    assert not engine.has_run(A)
    engine.create(A, LORA_A)
    assert engine.has_run(A)
    with pytest.raises(RequestError):
        engine.create(A, LORA_A)
    engine.drop(A)
    engine.drop(A)
    assert not engine.has_run(A)
    with pytest.raises(RequestError):
        drain(engine.forward(A, [datum()], adapter=True))
    with pytest.raises(RequestError):
        engine.optim_step(A, ADAM)


@pytest.mark.parametrize(
    "lora", [LoraSpec(rank=0), LoraSpec(rank=65), LoraSpec(targets=("no_such_proj",))]
)
def test_an_impossible_adapter_is_refused(kit, lora: LoraSpec) -> None:
    engine = kit.train()
    with pytest.raises(RequestError):
        engine.create(A, lora)
    assert not engine.has_run(A)
