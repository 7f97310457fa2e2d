"""What is the scripted engines' own; the rest is in tests/contract."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import RequestError
from plait.core.ids import OpId, RunId
from plait.core.operations import Datum, Sample, SamplingParams, StopReason
from plait.core.runs import LoraSpec
from plait.engines.protocol import ModelShape
from plait.engines.scripted import ScriptedRollout, ScriptedTrain, draw, losses, policy
from plait.engines.scripted.blocks import BlockLedger

SHAPE = ModelShape(
    name="scripted",
    vocab_size=259,
    max_context=64,
    n_layers=1,
    n_kv_heads=1,
    head_dim=8,
    hidden_size=8,
    n_params=1000,
    kv_bytes_per_token=64,
)


def sample(op_id: str = "x", *, prompt: bytes = b"hello world", n: int = 1, **params) -> Sample:
    return Sample(
        op_id=OpId(op_id),
        run_id=RunId("r"),
        version=None,
        prompt=tuple(prompt),
        n=n,
        params=SamplingParams(**{"max_tokens": 8, **params}),
    )


def rollout(**changes) -> ScriptedRollout:
    limits = {"n_blocks": 64, "block_size": 4, "max_batch_tokens": 32, "max_seqs": 8}
    return ScriptedRollout(SHAPE, **{**limits, **changes})


def finish(engine: ScriptedRollout) -> dict:
    results: dict = {}
    while engine.has_work():
        results.update(engine.step().finished)
    return results


def test_steps_cost_what_was_asked_for() -> None:
    naps: list[float] = []
    engine = rollout(sleep=naps.append, token_s=0.5, step_s=0.25, max_batch_tokens=6)
    engine.add(sample(max_tokens=2))
    finish(engine)
    assert naps == [0.25 + 0.5 * 6, 0.25 + 0.5 * 5, 0.25 + 0.5 * 1]


def test_without_a_cost_nothing_sleeps() -> None:
    naps: list[float] = []
    engine = rollout(sleep=naps.append)
    engine.add(sample())
    finish(engine)
    train = ScriptedTrain(SHAPE, sleep=naps.append)
    train.create(RunId("r"), LoraSpec())
    datum = Datum(input_tokens=(1, 2), target_tokens=(2, 3), mask=(True, True))
    list(train.forward(RunId("r"), [datum], adapter=True))
    assert naps == []


def test_training_costs_by_the_token() -> None:
    naps: list[float] = []
    train = ScriptedTrain(SHAPE, sleep=naps.append, token_s=0.5)
    train.create(RunId("r"), LoraSpec())
    datum = Datum(input_tokens=(1, 2, 3), target_tokens=(2, 3, 4), mask=(True,) * 3)
    list(train.forward_backward(RunId("r"), [datum, datum], "cross_entropy", {}))
    assert naps == [1.5, 1.5]


def test_prompts_are_prefilled_in_chunks_beside_decodes() -> None:
    engine = rollout(max_batch_tokens=4)
    engine.add(sample("short", prompt=b"a", max_tokens=12))
    engine.step()
    engine.add(sample("long", prompt=b"b" * 20, max_tokens=1))
    steps = [engine.step() for _ in range(7)]
    assert [step.n_prefill_tokens for step in steps] == [3, 3, 3, 3, 3, 3, 2]
    assert [step.n_tokens for step in steps] == [4, 4, 4, 4, 4, 4, 3]
    assert [op_id for op_id, _ in steps[-1].finished] == ["long"]


def test_a_preempted_sample_is_computed_again_from_its_start() -> None:
    def tokens(n_blocks: int) -> tuple[int, int]:
        engine = rollout(n_blocks=n_blocks, block_size=4)
        for i in range(3):
            engine.add(sample(f"x{i}", prompt=b"abc", max_tokens=20))
        steps = []
        while engine.has_work():
            steps.append(engine.step())
        return sum(s.n_tokens for s in steps), sum(s.n_preempted for s in steps)

    n_ample, n_preempted = tokens(64)
    assert (n_ample, n_preempted) == (3 * 22, 0)
    n_tight, n_preempted = tokens(8)
    assert n_preempted > 0
    # At least its prompt and a token each time.
    assert n_tight >= n_ample + 4 * n_preempted


def test_a_stop_string_ends_a_sample_and_is_kept() -> None:
    engine = rollout()
    engine.add(sample("free", max_tokens=40, top_k=4))
    free = finish(engine)["free"].samples[0].tokens
    letters = [i for i, token in enumerate(free) if token < 128]
    stop = chr(free[letters[2]])
    engine.add(sample("x", max_tokens=40, top_k=4, stop=(stop,)))
    ended = finish(engine)["x"].samples[0]
    assert ended.stop_reason is StopReason.STOP
    assert ended.tokens == free[: len(ended.tokens)]
    assert ended.tokens[-1] == ord(stop)
    assert ord(stop) not in ended.tokens[:-1]


def test_the_context_ends_a_sample() -> None:
    engine = rollout()
    engine.add(sample(prompt=b"p" * 60, max_tokens=50))
    (drawn,) = finish(engine)["x"].samples
    assert len(drawn.tokens) == 4
    assert drawn.stop_reason is StopReason.LENGTH


def test_an_operation_id_is_used_once() -> None:
    engine = rollout()
    engine.add(sample())
    with pytest.raises(RequestError, match="in flight"):
        engine.add(sample())


def test_top_k_and_top_p_cut_the_tail() -> None:
    logits_V = policy.logits(SHAPE.vocab_size, 65, None)
    ranked = sorted(range(SHAPE.vocab_size), key=lambda v: -logits_V[v])
    draws = [i / 500 for i in range(500)]
    top_3 = {draw.choose(logits_V, SamplingParams(max_tokens=1, top_k=3), u) for u in draws}
    assert top_3 == set(ranked[:3])
    narrow = SamplingParams(max_tokens=1, top_p=1e-6)
    assert {draw.choose(logits_V, narrow, u) for u in draws} == {ranked[0]}


def test_draws_follow_the_probabilities() -> None:
    logits_V = policy.logits(SHAPE.vocab_size, 65, None)
    likeliest = int(logits_V.argmax())
    n = 4000
    params = SamplingParams(max_tokens=1)
    hits = sum(draw.choose(logits_V, params, draw.uniform(1, i, 0)) == likeliest for i in range(n))
    p = float(policy.log_softmax(logits_V)[likeliest])
    assert hits / n == pytest.approx(math.exp(p), abs=0.03)


@pytest.mark.parametrize(
    ("loss", "config"),
    [
        ("cross_entropy", {}),
        ("importance_sampling", {"kl_coef": 0.3}),
        ("ppo", {"kl_coef": 0.3}),
        ("ppo", {"kl_coef": 0.3, "kl_by_ratio": 1.0}),
        ("ppo", {"clip_low_threshold": 0.99, "clip_high_threshold": 1.01}),
    ],
)
def test_slopes_are_the_derivatives_of_the_losses(loss: str, config: dict) -> None:
    inputs = {"logprobs": -1.1, "advantages": -0.7, "ref_logprobs": -0.8, "weights": 0.5}
    chosen = losses.choose(loss, config)
    for logprob in (-0.4, -1.3, -2.0):
        low, term, high = (chosen.of([logprob + d], [inputs])[0] for d in (-1e-6, 0, 1e-6))
        assert term.slope == pytest.approx((high.loss - low.loss) / 2e-6, abs=1e-5)


@given(
    steps=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 8), st.booleans()), max_size=40)
)
def test_the_block_ledger_adds_up(steps: list[tuple[str, int, bool]]) -> None:
    ledger = BlockLedger(10)
    held: dict[str, int] = {}
    for owner, n, gives_back in steps:
        if gives_back:
            ledger.release(owner)
            held.pop(owner, None)
        elif n - held.get(owner, 0) > ledger.free:
            with pytest.raises(RuntimeError):
                ledger.hold(owner, n)
        else:
            ledger.hold(owner, n)
            held[owner] = max(n, held.get(owner, 0))
        assert ledger.used == sum(held.values()) <= 10
        assert all(ledger.held(name) == n for name, n in held.items())
