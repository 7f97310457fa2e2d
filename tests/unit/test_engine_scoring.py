"""Log-probs of prompts and likeliest tokens, against ``transformers``, whatever the cache has."""

from pathlib import Path

import pytest
import torch
from random_models import private_cache, random_model

from plait.core.ids import OpId, RunId
from plait.core.operations import Sample, SampleResult, SamplingParams
from plait.engines.torch import scoring
from plait.engines.torch.rollout import TorchRollout

PROMPT = tuple(b"The quick brown fox jumps over the lazy dog, and again: the quick brown fox")
TOLERANCE = 1e-4
K = 5


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def reference(model: Path):
    """Log-probs ``[N, V]`` that ``transformers`` gives for what follows each token."""
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    def logprobs(tokens: tuple[int, ...]) -> torch.Tensor:
        with torch.no_grad():
            return theirs(torch.tensor([tokens])).logits[0].double().log_softmax(-1)

    return logprobs


def engine(model: Path, **options) -> TorchRollout:
    with private_cache(model):
        return TorchRollout(model, **{"n_blocks": 256, "block_size": 4} | options)


def op(
    name: str,
    *,
    prompt=PROMPT,
    n: int = 1,
    score: bool = True,
    k: int = 0,
    targets: tuple[tuple[int, ...], ...] = (),
    draws: int = 0,
    **options,
) -> Sample:
    return Sample(
        op_id=OpId(name),
        run_id=RunId("a"),
        version=None,
        prompt=prompt,
        n=n,
        prompt_logprobs=score,
        topk_logprobs=k,
        prompt_targets=targets,
        prompt_draws=draws,
        params=SamplingParams(**{"max_tokens": 6, "temperature": 0.0} | options),
    )


def finish(e: TorchRollout, *ops: Sample) -> dict[str, SampleResult]:
    for o in ops:
        e.add(o)
    results = {}
    while e.has_work():
        results.update(e.step().finished)
    return results


def check(result: SampleResult, prompt: tuple[int, ...], reference, k: int = 0) -> None:
    """Everything that the result says is what the reference says."""
    for drawn in result.samples:
        tokens = prompt + drawn.tokens
        want_NV = reference(tokens)[:-1]
        got = torch.tensor(result.prompt_logprobs + drawn.logprobs).double()
        want = want_NV.gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0]
        torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)
        ranked = result.prompt_topk + drawn.topk
        assert len(ranked) == (len(tokens) - 1 if k else 0)
        for row, one in zip(want_NV, ranked, strict=False):
            best = row.topk(k)
            assert len({token for token, _ in one}) == k
            values = torch.tensor([logprob for _, logprob in one]).double()
            torch.testing.assert_close(values, best.values, atol=TOLERANCE, rtol=0)
            named = row[torch.tensor([token for token, _ in one])]
            torch.testing.assert_close(named, best.values, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("tokens", [8, 512])
@pytest.mark.parametrize("rows", [3, 64])
def test_prompt_and_draws_match_transformers(
    model, reference, monkeypatch, tokens: int, rows: int
) -> None:
    monkeypatch.setattr(scoring, "BLOCK_ROWS", rows)
    e = engine(model, max_batch_tokens=tokens, max_seqs=8)
    others = [op("b", prompt=PROMPT[:9], n=2, k=K), op("c", prompt=PROMPT[:30], score=False, k=2)]
    found = finish(e, op("a", n=3, k=K, temperature=1.0), *others)
    check(found["a"], PROMPT, reference, K)
    check(found["b"], PROMPT[:9], reference, K)
    assert found["c"].prompt_logprobs == found["c"].prompt_topk == ()
    assert {len(x) for x in found["c"].samples[0].topk} == {2}


def named(every: int, first: int = 0) -> tuple[tuple[int, ...], ...]:
    """Some tokens of the vocabulary's, at one in ``every`` places from ``first`` on."""
    rows = range(len(PROMPT) - 1)
    return tuple((i, 262, 7 * i % 263) if i >= first and not i % every else () for i in rows)


@pytest.mark.parametrize("tokens", [8, 512])
@pytest.mark.parametrize("rows", [3, 64])
def test_what_is_named_and_drawn_matches_transformers(
    model, reference, monkeypatch, tokens: int, rows: int
) -> None:
    monkeypatch.setattr(scoring, "BLOCK_ROWS", rows)
    want_NV = reference(PROMPT)[:-1]
    e = engine(model, max_batch_tokens=tokens, max_seqs=8)
    warm = op("warm", score=False, targets=named(3, 10), draws=4, temperature=1.5)
    others = [op("plain", k=K), op("sparse", prompt=PROMPT, score=False, targets=named(20, 31))]
    found = finish(e, warm, *others)
    check(found["plain"], PROMPT, reference, K)
    for o in (warm, others[1]):
        told = found[o.op_id].prompt_targets
        for row_V, ids, logprobs in zip(want_NV, o.prompt_targets, told, strict=True):
            assert logprobs == pytest.approx(row_V[list(ids)].tolist(), abs=TOLERANCE)
    assert found["sparse"].prompt_logprobs == found["sparse"].prompt_draws == ()
    drawn = found["warm"].prompt_draws
    assert [len(row) for row in drawn] == [4] * (len(PROMPT) - 1)
    for row_V, pairs in zip(want_NV, drawn, strict=True):
        for token, logprob in pairs:
            assert logprob == pytest.approx(float(row_V[token]), abs=TOLERANCE)


def test_rows_before_the_first_that_is_named_come_from_the_cache(model, monkeypatch) -> None:
    e = engine(model)
    rows: list[int] = []
    head = e._head

    def counted(h_ND, at, lora):
        rows.append(len(at))
        return head(h_ND, at, lora)

    def steps(o: Sample) -> int:
        rows.clear()
        e.add(o)
        n = 0
        while e.has_work():
            n += e.step().n_prefill_tokens
        return n

    monkeypatch.setattr(e, "_head", counted)
    ask = {"score": False, "max_tokens": 1}
    assert steps(op("first", targets=named(10, 60), **ask)) == len(PROMPT)
    assert rows == [2, 1], "rows 60 and 70, and the token that is drawn"
    cached = 60 // 4 * 4
    assert steps(op("again", targets=named(10, 60), **ask)) == len(PROMPT) - cached
    assert rows == [2, 1]
    assert steps(op("all", targets=named(10, 60), draws=1, **ask)) == len(PROMPT)
    assert rows == [64, len(PROMPT) - 1 - 64, 1]


def test_rows_that_are_not_finite_fail_the_request_that_asks(model, monkeypatch) -> None:
    e = engine(model)
    head = e._head

    def poisoned(h_ND, at, lora):
        logits = head(h_ND, at, lora)
        if len(at) > 1:
            logits[1] = float("nan")
        return logits

    monkeypatch.setattr(e, "_head", poisoned)
    e.add(op("x", score=False, targets=named(10), draws=3, temperature=0.0))
    ((op_id, error),) = e.step().failed
    assert op_id == "x"
    assert "logits are not finite in the prompt" in str(error)
    assert not e.has_work()


def test_a_cached_prompt_is_scored_all_the_same(model, reference) -> None:
    e = engine(model)
    unscored = finish(e, op("first", score=False))["first"]
    check(finish(e, op("again", k=K))["again"], PROMPT, reference, K)
    longer = PROMPT + unscored.samples[0].tokens + PROMPT[:5]
    check(finish(e, op("longer"))["longer"], longer[: len(PROMPT)], reference)
    check(finish(e, op("turn", prompt=longer, max_tokens=1))["turn"], longer, reference)


def test_a_prompt_that_somebody_else_computes_is_scored_all_the_same(model, reference) -> None:
    e = engine(model)
    found = finish(e, op("lead", n=2, score=False), op("x", n=2), op("y", n=2, k=K))
    check(found["x"], PROMPT, reference)
    check(found["y"], PROMPT, reference, K)
    assert found["lead"].samples == found["x"].samples


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_scoring_survives_preemption_in_the_middle_of_a_prompt(
    model, reference, prefix_cache: bool
) -> None:
    e = engine(model, n_blocks=26, max_batch_tokens=8, max_seqs=4, prefix_cache=prefix_cache)
    e.add(op("a", n=2, k=K))
    for _ in range(5):
        e.step()
    assert e._scheduler.preempt_all() == 1
    e.resize_kv(30)
    check(finish(e)["a"], PROMPT, reference, K)


def test_the_head_runs_for_what_is_drawn_or_scored_and_in_bounded_blocks(
    model, monkeypatch
) -> None:
    monkeypatch.setattr(scoring, "BLOCK_ROWS", 16)
    e = engine(model)
    sizes: list[int] = []
    head = e._head

    def counted(h_ND, rows, lora):
        sizes.append(len(rows))
        return head(h_ND, rows, lora)

    monkeypatch.setattr(e, "_head", counted)
    finish(e, op("plain", score=False))
    assert sizes == [1] * 6
    sizes.clear()
    finish(e, op("scored"))
    assert sum(sizes) == len(PROMPT) - 1 + 6
    assert max(sizes) == 16


def test_a_prompt_of_one_token_has_nothing_to_score(model) -> None:
    assert finish(engine(model), op("x", prompt=PROMPT[:1], k=1))["x"].prompt_logprobs == ()


def test_an_abort_before_the_prompts_end_scores_nothing(model) -> None:
    e = engine(model, max_batch_tokens=8, max_seqs=4)
    e.add(op("x", k=K))
    e.step()
    ((_, result),) = e.abort([OpId("x")])
    assert result.prompt_logprobs == result.prompt_topk == ()
