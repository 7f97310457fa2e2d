"""The contract of rollout engines (``engines/protocol.py``), one suite for all of them."""

from pathlib import Path

import pytest
from drive import PROMPT, A, B, drain, finish, learn, loaded, run_ops, sample

from plait.core.errors import CapacityError, ModelError, RequestError
from plait.core.ids import OpId, RunId
from plait.core.operations import MAX_NAMED, Datum, SampleResult, StopReason
from plait.core.runs import HEAD, LoraSpec

MOST_STEPS = 60
"""A long queue of 40 samples, four at once, 16 tokens each, needs 160 steps."""


def test_outputs_depend_on_the_requested_adapter_alone(kit, adapters) -> None:
    alone = {}
    for run_id in ("a", "b"):
        ops = [sample(run_id, run_id, 1, n=6)]
        alone |= run_ops(loaded(kit, adapters), *ops)
    together = run_ops(
        loaded(kit, adapters),
        sample("a", "a", 1, n=6),
        sample("base", "a", None, n=6),
        sample("b", "b", 1, n=6),
    )
    kit.assert_same(together["a"], alone["a"])
    kit.assert_same(together["b"], alone["b"])
    drawn = {tuple(s.tokens for s in together[name].samples) for name in ("a", "b", "base")}
    assert len(drawn) == 3
    assert {s.version for s in together["a"].samples} == {1}
    assert {s.version for s in together["base"].samples} == {None}


def test_samples_of_one_seed_are_distinct_and_reproducible(kit) -> None:
    first = run_ops(kit.rollout(), sample("x", n=8, max_tokens=24))["x"]
    again = run_ops(kit.rollout(), sample("y", n=8, max_tokens=24))["y"]
    other = run_ops(kit.rollout(), sample("z", n=8, max_tokens=24, seed=8))["z"]
    assert len({s.tokens for s in first.samples}) == 8
    assert first == again
    assert {s.tokens for s in first.samples}.isdisjoint({s.tokens for s in other.samples})


def test_indices_split_over_requests_equal_one_request(kit) -> None:
    whole = run_ops(kit.rollout(), sample("w", n=5))["w"]
    parts = run_ops(kit.rollout(), sample("p", n=2), sample("q", n=3, first_index=2))
    joined = SampleResult(samples=parts["p"].samples + parts["q"].samples)
    kit.assert_same(joined, whole)


def test_batch_composition_does_not_change_what_is_drawn(kit, adapters) -> None:
    alone = run_ops(loaded(kit, adapters), sample("x", "a", 1, n=4, max_tokens=20))["x"]
    engine = loaded(kit, adapters)
    crowd = [
        sample(f"c{i}", "b", 1, prompt=PROMPT * (1 + i % 3), seed=i, max_tokens=3 + 5 * i)
        for i in range(5)
    ]
    for op in crowd:
        engine.add(op)
    for _ in range(4):
        engine.step()
    kit.assert_same(run_ops(engine, sample("x", "a", 1, n=4, max_tokens=20))["x"], alone)


def test_every_token_has_its_logprob_and_a_reason_to_end(kit) -> None:
    result = run_ops(kit.rollout(), sample("x", n=3, max_tokens=9))["x"]
    for drawn in result.samples:
        assert len(drawn.tokens) == len(drawn.logprobs) == 9
        assert all(logprob <= 0 for logprob in drawn.logprobs)
        assert drawn.stop_reason is StopReason.LENGTH


def test_sampler_and_trainer_agree_on_logprobs(kit, adapters) -> None:
    result = run_ops(loaded(kit, adapters), sample("x", "a", 1, n=2, temperature=1.3))["x"]
    train = kit.train()
    train.load(A, adapters[0], optimizer=False)
    for drawn in result.samples:
        tokens = (*PROMPT, *drawn.tokens)
        item = Datum(
            input_tokens=tokens[:-1],
            target_tokens=tokens[1:],
            mask=tuple(i >= len(PROMPT) - 1 for i in range(len(tokens) - 1)),
        )
        scored = drain(train.forward(A, [item], adapter=True)).logprobs[0]
        assert scored == pytest.approx(drawn.logprobs, abs=max(1e-4, kit.logprob_atol))


def test_an_adapter_of_the_head_is_sampled_as_it_is_trained(kit, tmp_path: Path) -> None:
    train = kit.train()
    train.create(A, LoraSpec(rank=4, targets=(HEAD,)))
    learn(train, A, b"zzzzzzzzzzzz", n_steps=6)
    train.save(A, str(tmp_path), optimizer=False)
    engine = kit.rollout()
    engine.load_adapter(A, 1, str(tmp_path))
    asked = [sample(name, "a", v, prompt_logprobs=True) for name, v in (("x", 1), ("base", None))]
    results = run_ops(engine, *asked)
    item = Datum(
        input_tokens=PROMPT[:-1], target_tokens=PROMPT[1:], mask=(True,) * (len(PROMPT) - 1)
    )
    found = [results[op.op_id].prompt_logprobs for op in asked]
    for adapter, ours in ((True, found[0]), (False, found[1])):
        scored = drain(train.forward(A, [item], adapter=adapter)).logprobs[0]
        assert ours == pytest.approx(scored, abs=max(1e-4, kit.logprob_atol))
    assert max(abs(x - y) for x, y in zip(*found, strict=True)) > 0.01


def test_a_prompt_is_scored_as_the_trainer_scores_it(kit, adapters) -> None:
    engine = loaded(kit, adapters, max_batch_tokens=24)
    run_ops(engine, sample("before", "a", 1))  # a prefix that the cache knows is scored too
    asked = sample("x", "a", 1, n=2, prompt_logprobs=True)
    result = run_ops(engine, asked, sample("y", "a", 1))["x"]
    train = kit.train()
    train.load(A, adapters[0], optimizer=False)
    item = Datum(
        input_tokens=PROMPT[:-1], target_tokens=PROMPT[1:], mask=(True,) * (len(PROMPT) - 1)
    )
    scored = drain(train.forward(A, [item], adapter=True)).logprobs[0]
    assert result.prompt_logprobs == pytest.approx(scored, abs=max(1e-4, kit.logprob_atol))
    unscored = run_ops(engine, sample("x", "a", 1, n=2))["x"]
    kit.assert_same(SampleResult(samples=result.samples), unscored)


def test_the_likeliest_tokens_are_named_at_every_position(kit) -> None:
    op = sample("x", n=2, temperature=0.0, prompt_logprobs=True, topk_logprobs=4)
    result = run_ops(kit.rollout(), op)["x"]
    assert len(result.prompt_topk) == len(PROMPT) - 1
    for drawn in result.samples:
        assert tuple(best[0] for best in drawn.topk) == tuple(
            zip(drawn.tokens, drawn.logprobs, strict=True)
        )
    for ranked in (*result.prompt_topk, *result.samples[0].topk):
        assert len({token for token, _ in ranked}) == 4
        assert [p for _, p in ranked] == sorted((p for _, p in ranked), reverse=True)
    for token, logprob, ranked in zip(
        PROMPT[1:], result.prompt_logprobs, result.prompt_topk, strict=True
    ):
        assert dict(ranked).get(token, logprob) == pytest.approx(logprob, abs=1e-9)
        assert logprob <= ranked[0][1] + 1e-9
    bare = run_ops(kit.rollout(), sample("x"))["x"]
    assert bare.prompt_logprobs == bare.prompt_topk == bare.samples[0].topk == ()


def test_a_stop_token_ends_a_sample_and_is_kept(kit) -> None:
    free = run_ops(kit.rollout(), sample("x", max_tokens=20))["x"].samples[0]
    stop = free.tokens[5]
    first = free.tokens.index(stop)
    ended = run_ops(kit.rollout(), sample("x", max_tokens=20, stop_tokens=(stop,)))["x"].samples[0]
    assert ended.tokens == free.tokens[: first + 1]
    assert ended.stop_reason is StopReason.STOP


def test_greedy_does_not_depend_on_the_seed(kit) -> None:
    one = run_ops(kit.rollout(), sample("x", temperature=0.0, seed=1, n=2))["x"]
    two = run_ops(kit.rollout(), sample("x", temperature=0.0, seed=2, n=2))["x"]
    assert {s.tokens for s in one.samples} == {s.tokens for s in two.samples}
    assert len({s.tokens for s in one.samples}) == 1


def test_a_group_has_one_prefill(kit) -> None:
    prompt = PROMPT * 4
    engine = kit.rollout(max_batch_tokens=256)
    engine.add(sample("x", prompt=prompt, n=8, max_tokens=2))
    _, steps = finish(engine)
    n_prefill = sum(step.n_prefill_tokens for step in steps)
    # Each sample may compute what lies in the prompt's last, unfinished block for itself.
    assert n_prefill <= len(prompt) + 8 * kit.block_size


def test_steps_report_their_tokens_by_run(kit, adapters) -> None:
    engine = loaded(kit, adapters, max_batch_tokens=24)
    engine.add(sample("x", "a", 1, n=3))
    engine.add(sample("y", "b", 1, n=3))
    _, steps = finish(engine)
    for step in steps:
        assert step.n_tokens == sum(step.tokens_by_run.values()) <= 24
        assert step.kv_blocks_used == sum(step.kv_blocks_by_run.values())
        assert step.n_tokens >= 1
    assert {run_id for step in steps for run_id in step.tokens_by_run} == {A, B}


def test_abort_returns_what_was_drawn_and_leaves_the_others(kit) -> None:
    want = run_ops(kit.rollout(), sample("keep", n=2, max_tokens=20, seed=1))["keep"]
    engine = kit.rollout()
    engine.add(sample("keep", n=2, max_tokens=20, seed=1))
    engine.add(sample("gone", n=2, max_tokens=60))
    for _ in range(8):
        engine.step()
    ((op_id, result),) = engine.abort([OpId("gone"), OpId("never-added")])
    assert op_id == "gone"
    assert {s.stop_reason for s in result.samples} == {StopReason.ABORT}
    assert all(0 < len(s.tokens) < 60 for s in result.samples)
    results, steps = finish(engine)
    assert set(results) == {"keep"}
    kit.assert_same(results["keep"], want)
    assert steps[-1].n_running <= 2
    engine.add(sample("gone", max_tokens=2))
    assert set(finish(engine)[0]) == {"gone"}


def test_a_sample_under_way_is_seen_as_far_as_it_has_got_and_undisturbed(kit) -> None:
    alone = run_ops(kit.rollout(), sample("whole", n=2))["whole"]
    engine = kit.rollout()
    engine.add(sample("whole", n=2))
    seen, ended = [], {}
    while engine.has_work():
        if (so_far := engine.peek(OpId("whole"))) is not None:
            seen.append(so_far)
        ended.update(dict(engine.step().finished))
    kit.assert_same(ended[OpId("whole")], alone)
    assert engine.peek(OpId("whole")) is None
    assert engine.peek(OpId("nothing")) is None
    lengths = [len(r.samples[0].tokens) for r in seen]
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 5
    for so_far in seen:
        for part, whole in zip(so_far.samples, alone.samples, strict=True):
            assert part.tokens == whole.tokens[: len(part.tokens)]
            assert part.logprobs == whole.logprobs[: len(part.tokens)]


def test_abort_before_the_first_step_gives_empty_samples(kit) -> None:
    engine = kit.rollout()
    engine.add(sample("x", n=2))
    ((_, result),) = engine.abort([OpId("x")])
    assert [s.tokens for s in result.samples] == [(), ()]
    assert not engine.has_work()


def test_a_pause_of_one_run_leaves_the_other_unchanged(kit, adapters) -> None:
    ops = (sample("x", "a", 1, n=3, max_tokens=16), sample("y", "b", 1, n=3, max_tokens=16))
    want = run_ops(loaded(kit, adapters), *ops)
    engine = loaded(kit, adapters)
    for op in ops:
        engine.add(op)
    for _ in range(4):
        engine.step()
    engine.set_paused(A, True)
    results, steps = finish(engine)
    assert set(results) == {"y"}
    assert all(A not in step.tokens_by_run for step in steps)
    kit.assert_same(results["y"], want["y"])
    assert not engine.has_work()
    engine.set_paused(A, False)
    assert engine.has_work()
    kit.assert_same(finish(engine)[0]["x"], want["x"])


def test_a_paused_run_does_not_lock_up_the_cache(kit, adapters) -> None:
    one = -(-(len(PROMPT) + 16) // kit.block_size) + 1
    engine = loaded(kit, adapters, n_blocks=2 * one)
    engine.add(sample("x", "a", 1, n=8, max_tokens=16))
    for _ in range(6):
        engine.step()
    engine.set_paused(A, True)
    engine.add(sample("y", "b", 1, n=8, max_tokens=16))
    assert set(finish(engine)[0]) == {"y"}
    engine.set_paused(A, False)
    assert set(finish(engine)[0]) == {"x"}


def test_more_work_than_blocks_all_finishes_with_equal_results(kit, adapters) -> None:
    ops = [
        sample(f"{run}{i}", run, 1, n=4, seed=i, max_tokens=20) for i in range(3) for run in "ab"
    ]
    want = run_ops(loaded(kit, adapters, n_blocks=1024), *ops)
    one = -(-(len(PROMPT) + 20) // kit.block_size) + 1
    n_blocks = 3 * one
    engine = loaded(kit, adapters, n_blocks=n_blocks)
    for op in ops:
        engine.add(op)
    results, steps = finish(engine)
    assert set(results) == set(want)
    assert max(step.kv_blocks_used for step in steps) <= n_blocks
    assert max(step.n_waiting for step in steps) > 0
    for name, result in results.items():
        kit.assert_same(result, want[name])


def test_a_long_queue_of_one_run_does_not_starve_another(kit, adapters) -> None:
    engine = loaded(kit, adapters, max_seqs=4)
    engine.add(sample("long", "a", 1, n=40, max_tokens=16))
    engine.step()
    engine.add(sample("short", "b", 1, max_tokens=4))
    ended = [op_id for _ in range(MOST_STEPS) for op_id, _ in engine.step().finished]
    assert ended[:1] == ["short"]


def test_resizing_the_cache_keeps_results(kit, adapters) -> None:
    ops = [sample(f"x{i}", "a", 1, n=3, seed=i, max_tokens=24) for i in range(3)]
    want = run_ops(loaded(kit, adapters), *ops)
    engine = loaded(kit, adapters, n_blocks=256)
    for op in ops:
        engine.add(op)
    for _ in range(6):
        engine.step()
    one = -(-(len(PROMPT) + 24) // kit.block_size) + 1
    engine.resize_kv(2 * one)
    results: dict = {}
    for _ in range(10):
        step = engine.step()
        results.update(step.finished)
        assert step.kv_blocks_used <= 2 * one
    engine.resize_kv(256)
    results.update(finish(engine)[0])
    for name, result in want.items():
        kit.assert_same(results[name], result)


def test_a_prompt_that_can_never_fit_is_refused(kit) -> None:
    engine = kit.rollout(n_blocks=4)
    with pytest.raises(CapacityError):
        engine.add(sample("x", prompt=PROMPT * 40, max_tokens=4))
    too_long = (65,) * (kit.shape.max_context + 1)
    with pytest.raises(CapacityError):
        kit.rollout(n_blocks=100_000 // kit.block_size).add(sample("x", prompt=too_long))
    assert not engine.has_work()
    assert set(run_ops(engine, sample("x", prompt=PROMPT[:2], max_tokens=2))) == {"x"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": (-1,)},
        {"prompt": (10**9,)},
        {"prompt": ()},
        {"max_tokens": 0},
        {"n": 0},
        {"topk_logprobs": 21},
        {"topk_logprobs": -1},
        {"prompt_draws": 21},
        {"prompt_draws": -1},
        {"prompt_targets": ((65,),)},
        {"prompt_targets": ((),) * (len(PROMPT) - 1)},
        {"prompt_targets": ((65,),) * (len(PROMPT) - 2) + ((10**9,),)},
        {"prompt_targets": ((65,),) * (len(PROMPT) - 2) + ((-1,),)},
        {"prompt_targets": ((65,) * (MAX_NAMED + 1),) + ((),) * (len(PROMPT) - 2)},
        {"prompt": (65,), "prompt_targets": ((65,),)},
    ],
)
def test_wrong_arguments_are_refused_and_the_engine_lives_on(kit, wrong: dict) -> None:
    engine = kit.rollout()
    with pytest.raises(RequestError):
        engine.add(sample("x", **wrong))
    assert set(run_ops(engine, sample("x"))) == {"x"}


def test_a_version_that_is_not_loaded_is_refused(kit, adapters) -> None:
    engine = loaded(kit, adapters)
    with pytest.raises(RequestError, match="version 2 of a is not loaded"):
        engine.add(sample("x", "a", 2))


def test_an_adapter_that_cannot_be_read_is_refused(kit, tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        kit.rollout().load_adapter(A, 1, str(tmp_path / "nothing"))


def test_a_dropped_adapter_serves_its_last_samples(kit, adapters) -> None:
    want = run_ops(loaded(kit, adapters), sample("x", "a", 1, n=2))["x"]
    engine = loaded(kit, adapters)
    engine.add(sample("x", "a", 1, n=2))
    engine.step()
    engine.drop_adapter(A, 1)
    engine.drop_adapter(A, 99)
    kit.assert_same(finish(engine)[0]["x"], want)


def test_a_newer_version_uses_nothing_of_the_older_one(kit, adapters) -> None:
    engine = loaded(kit, adapters)
    run_ops(engine, sample("old", "a", 1, n=4))
    engine.load_adapter(A, 2, adapters[1])
    new = run_ops(engine, sample("new", "a", 2, n=4))["new"]
    want = run_ops(loaded(kit, adapters), sample("w", "b", 1, n=4))["w"]
    assert [s.tokens for s in new.samples] == [s.tokens for s in want.samples]


def test_a_run_that_lacks_blocks_is_named_and_one_that_waits_for_a_place_is_not(kit) -> None:
    def short(**limits: int) -> set[RunId]:
        engine = kit.rollout(**limits)
        for run_id in ("a", "b"):
            engine.add(sample(run_id, run_id))
        return {run_id for step in finish(engine)[1] for run_id in step.short_of_blocks}

    assert short(n_blocks=8) == {B}
    assert short(n_blocks=64, max_seqs=1) == set()


def test_a_cache_too_small_for_a_sample_in_flight_is_refused(kit, adapters) -> None:
    want = run_ops(loaded(kit, adapters), sample("x", "a", 1, n=2))["x"]
    engine = loaded(kit, adapters)
    engine.add(sample("x", "a", 1, n=2))
    for _ in range(3):
        engine.step()
    with pytest.raises(CapacityError):
        engine.resize_kv(2)
    kit.assert_same(finish(engine)[0]["x"], want)
