"""The contract of rollout engines for what else a prompt is asked: tokens that a sample names in
place of the prompt's own, and tokens drawn there."""

from collections import Counter
from dataclasses import replace
from math import exp

import pytest
from drive import PROMPT, A, drain, finish, loaded, run_ops, sample

from plait.core.ids import OpId
from plait.core.operations import Datum, Sample, SampleResult

ROWS = len(PROMPT) - 1
MOST = 0.95
"""Share of draws that are the same where floats depend on the batch."""
SPARSE = tuple((66, 258, 0) if i in (4, 7) else () for i in range(ROWS))
EVERY = tuple((token, 70, 70) for token in PROMPT[1:])


def same(kit, got: SampleResult, want: SampleResult) -> None:
    """All that is said of the prompt is the same, up to what the kit says about floats."""
    if kit.exact:
        assert (got.prompt_targets, got.prompt_draws) == (want.prompt_targets, want.prompt_draws)
    assert [len(row) for row in got.prompt_targets] == [len(row) for row in want.prompt_targets]
    for a, b in zip(got.prompt_targets, want.prompt_targets, strict=True):
        assert a == pytest.approx(b, abs=1e-4)
    assert [len(row) for row in got.prompt_draws] == [len(row) for row in want.prompt_draws]
    pairs = [
        pair
        for rows in zip(got.prompt_draws, want.prompt_draws, strict=True)
        for pair in zip(*rows, strict=True)
    ]
    alike = [(p, q) for (a, p), (b, q) in pairs if a == b]
    assert len(alike) >= MOST * len(pairs)
    assert [p for p, _ in alike] == pytest.approx([q for _, q in alike], abs=1e-4)


def test_named_tokens_are_scored_as_the_trainer_scores_them(kit, adapters) -> None:
    asked = sample("x", "a", 1, prompt_targets=EVERY, prompt_logprobs=True, topk_logprobs=3)
    result = run_ops(loaded(kit, adapters, max_batch_tokens=5, max_seqs=4), asked)["x"]
    assert [len(row) for row in result.prompt_targets] == [3] * ROWS
    assert tuple(row[0] for row in result.prompt_targets) == result.prompt_logprobs
    assert [row[1] for row in result.prompt_targets] == [row[2] for row in result.prompt_targets]
    train = kit.train()
    train.load(A, adapters[0], optimizer=False)
    item = Datum(input_tokens=PROMPT[:-1], target_tokens=(70,) * ROWS, mask=(True,) * ROWS)
    scored = drain(train.forward(A, [item], adapter=True)).logprobs[0]
    assert [row[1] for row in result.prompt_targets] == pytest.approx(scored, abs=1e-4)
    ranked = tuple(tuple(token for token, _ in row) for row in result.prompt_topk)
    again = run_ops(loaded(kit, adapters), sample("x", "a", 1, prompt_targets=ranked))["x"]
    for named, best in zip(again.prompt_targets, result.prompt_topk, strict=True):
        assert named == pytest.approx([logprob for _, logprob in best], abs=1e-4)


def test_only_what_is_asked_for_is_told(kit, adapters) -> None:
    asked = sample("x", "a", 1, n=2, prompt_targets=SPARSE, topk_logprobs=2)
    result = run_ops(loaded(kit, adapters), asked)["x"]
    assert [len(row) for row in result.prompt_targets] == [len(row) for row in SPARSE]
    assert result.prompt_logprobs == result.prompt_topk == result.prompt_draws == ()
    assert all(len(s.topk) == len(s.tokens) for s in result.samples)
    whole = run_ops(loaded(kit, adapters), replace(asked, prompt_logprobs=True))["x"]
    same(kit, result, whole)
    bare = run_ops(loaded(kit, adapters), sample("x", "a", 1, n=2))["x"]
    kit.assert_same(replace(result, prompt_targets=(), samples=bare.samples), bare)
    assert bare.prompt_targets == bare.prompt_draws == ()


def test_what_is_drawn_in_the_prompt_changes_nothing_else(kit) -> None:
    plain = run_ops(kit.rollout(), sample("x", n=2, prompt_logprobs=True))["x"]
    asked = sample("x", n=2, prompt_logprobs=True, prompt_draws=3, prompt_targets=SPARSE)
    result = run_ops(kit.rollout(), asked)["x"]
    kit.assert_same(replace(result, prompt_draws=(), prompt_targets=()), plain)
    assert result.prompt_logprobs == pytest.approx(plain.prompt_logprobs, abs=1e-5)


def test_draws_have_the_models_own_logprobs(kit, adapters) -> None:
    drawn = run_ops(loaded(kit, adapters), sample("x", "a", 1, prompt_draws=20))["x"].prompt_draws
    assert [len(row) for row in drawn] == [20] * ROWS
    assert len(set(drawn)) == ROWS
    named = tuple(tuple(token for token, _ in row) for row in drawn)
    told = run_ops(loaded(kit, adapters), sample("y", "a", 1, prompt_targets=named))["y"]
    for scored, row in zip(told.prompt_targets, drawn, strict=True):
        assert scored == pytest.approx([logprob for _, logprob in row], abs=1e-4)


def test_draws_are_a_function_of_the_seed_and_of_temperature_alone(kit) -> None:
    def draws(**options) -> tuple:
        return run_ops(kit.rollout(), sample("x", prompt_draws=6, **options))["x"].prompt_draws

    first = draws()
    assert draws() == first
    want = SampleResult(samples=(), prompt_draws=first)
    for options in ({"n": 3}, {"first_index": 5}, {"top_k": 1}, {"max_tokens": 1}):
        same(kit, replace(want, prompt_draws=draws(**options)), want)
    few = run_ops(kit.rollout(), sample("x", prompt_draws=2))["x"].prompt_draws
    assert few == tuple(row[:2] for row in first)
    other = draws(seed=8)
    assert sum(a != b for a, b in zip(first, other, strict=True)) == ROWS


def test_draws_are_independent_of_each_other_and_of_the_samples(kit) -> None:
    asked = sample("x", prompt=(65,) * 40, prompt_draws=2)
    drawn = run_ops(kit.rollout(), asked)["x"].prompt_draws
    firsts = Counter(row[0][0] for row in drawn)
    assert max(firsts.values()) < len(drawn) / 2, "behind equal tokens the model says much the same"
    assert sum(a == b for a, b in drawn) < len(drawn) / 2
    engine, alike, n = kit.rollout(), 0, 30
    for seed in range(n):
        options = {"seed": seed, "max_tokens": 1}
        inside = sample("inside", prompt=PROMPT[:2], prompt_draws=1, **options)
        results = run_ops(engine, inside, sample("behind", prompt=PROMPT[:1], **options))
        (((token, _),),) = results["inside"].prompt_draws
        alike += results["behind"].samples[0].tokens == (token,)
    assert alike < n / 2


def test_greedy_draws_are_the_likeliest(kit) -> None:
    asked = sample("x", temperature=0.0, prompt_draws=3, prompt_logprobs=True, topk_logprobs=1)
    # A neighbour of another temperature, in the same blocks of rows.
    results = run_ops(kit.rollout(), asked, sample("y", prompt_draws=3, temperature=1.7))
    result = results["x"]
    assert result.prompt_draws == tuple(row * 3 for row in result.prompt_topk)
    alone = run_ops(kit.rollout(), sample("y", prompt_draws=3, temperature=1.7))["y"]
    same(kit, results["y"], alone)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_draws_are_shared_out_as_the_model_says(kit, temperature: float) -> None:
    vocab, n = kit.shape.vocab_size, 150
    everything = tuple(range(vocab))
    ask = {"prompt": PROMPT[:2], "max_tokens": 1}
    told = run_ops(kit.rollout(), sample("all", prompt_targets=(everything,), **ask))
    (logprobs,) = told["all"].prompt_targets
    ops = [
        sample(f"{seed}", seed=seed, prompt_draws=20, temperature=temperature, **ask)
        for seed in range(n)
    ]
    results = run_ops(kit.rollout(max_batch_tokens=256, max_seqs=64), *ops)
    counts = Counter(token for op in ops for token, _ in results[op.op_id].prompt_draws[0])
    weights = [exp(p / temperature) for p in logprobs]
    total = n * 20
    assert sum(counts.values()) == total
    for token, weight in enumerate(weights):
        share = weight / sum(weights)
        spread = 5 * (share / total) ** 0.5 + 5 / total
        assert abs(counts[token] / total - share) <= spread, token


def crowd() -> list[Sample]:
    return [
        sample("b", "b", 1, prompt=PROMPT * 2, seed=1, prompt_draws=2),
        sample("twin", "a", 1, n=3, seed=2),
        sample("base", "a", None, prompt_targets=SPARSE),
        sample("scored", "a", 1, prompt_logprobs=True, topk_logprobs=2),
    ]


@pytest.mark.parametrize("tokens", [6, 17, 128])
def test_nothing_of_it_depends_on_company_or_on_how_a_prompt_is_cut(
    kit, adapters, tokens: int
) -> None:
    asked = sample("x", "a", 1, n=2, prompt_targets=EVERY, prompt_draws=4)
    want = run_ops(loaded(kit, adapters), asked)["x"]
    engine = loaded(kit, adapters, max_batch_tokens=tokens, max_seqs=6)
    for op in crowd():
        engine.add(op)
    engine.step()
    got = run_ops(engine, asked)["x"]
    same(kit, got, want)
    again = run_ops(engine, replace(asked, op_id=OpId("again")))["again"]
    same(kit, again, want)


def test_it_survives_preemption_in_the_middle_of_the_prompt(kit, adapters) -> None:
    long = PROMPT * 4
    asked = sample(
        "x",
        "a",
        1,
        prompt=long,
        max_tokens=2,
        prompt_draws=3,
        prompt_targets=tuple((token, 66) if i % 3 else () for i, token in enumerate(long[1:])),
    )
    want = run_ops(loaded(kit, adapters), asked)["x"]
    engine = loaded(kit, adapters, max_batch_tokens=8, max_seqs=4, n_blocks=40)
    engine.add(asked)
    for _ in range(3):
        engine.step()
    engine.set_paused(A, True)
    engine.add(sample("y", "b", 1, prompt=PROMPT * 5, n=4, max_tokens=24))
    assert any(step.n_preempted for step in finish(engine)[1])
    engine.set_paused(A, False)
    results, _ = finish(engine)
    same(kit, results["x"], want)


@pytest.mark.parametrize("kv", [True, False])
@pytest.mark.parametrize("n_steps", [0, 1, 3, 5])
def test_it_moves_along(kit, adapters, n_steps: int, kv: bool) -> None:
    long = PROMPT * 2
    rows = tuple((token, 66) if i > 9 else () for i, token in enumerate(long[1:]))
    asked = sample("x", "a", 1, prompt=long, n=2, max_tokens=6, prompt_targets=rows)
    for op in (asked, replace(asked, prompt_draws=3)):
        want = run_ops(loaded(kit, adapters), op)["x"]
        source = loaded(kit, adapters, max_batch_tokens=8, max_seqs=4)
        source.add(op)
        for _ in range(n_steps):
            source.step()
        target = loaded(kit, adapters, max_batch_tokens=11, max_seqs=4)
        target.import_sample(source.export_sample(OpId("x"), kv=kv))
        same(kit, finish(target)[0]["x"], want)


def test_an_abort_before_the_prompts_end_tells_nothing(kit, adapters) -> None:
    engine = loaded(kit, adapters, max_batch_tokens=4, max_seqs=4)
    engine.add(sample("x", "a", 1, prompt_targets=EVERY, prompt_draws=2))
    engine.step()
    ((_, result),) = engine.abort([OpId("x")])
    assert result.prompt_targets == result.prompt_draws == ()


def test_a_prompt_of_one_token_has_no_place_for_others(kit) -> None:
    result = run_ops(kit.rollout(), sample("x", prompt=PROMPT[:1], prompt_draws=2))["x"]
    assert result.prompt_draws == ()
    assert result.samples[0].tokens
