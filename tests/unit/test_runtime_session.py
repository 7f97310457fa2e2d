"""Session: runs over real worker processes with the scripted engine; crashes included."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
from session_support import ADAM, PROMPT, Events, datum, draw, one_step, session

from plait.core.errors import RequestError, StoreError
from plait.core.ids import RunId
from plait.core.operations import Datum, SampleResult, SamplingParams
from plait.core.runs import LoraSpec, Stage
from plait.runtime.client import RunClient


async def test_a_prompt_is_scored_and_the_likeliest_tokens_named(
    tmp_path: Path, byte_model: Path
) -> None:
    async with session(tmp_path / "a", byte_model) as s:
        run = await s.create_run("one")
        params = SamplingParams(max_tokens=1)
        result = await run.sample(PROMPT, params, n=2, prompt_logprobs=True, topk_logprobs=3)
        assert len(result.prompt_logprobs) == len(result.prompt_topk) == len(PROMPT) - 1
        assert [len(ranked) for drawn in result.samples for ranked in drawn.topk] == [3, 3]
        with pytest.raises(RequestError, match="topk_logprobs"):
            await run.sample(PROMPT, params, topk_logprobs=21)
        with pytest.raises(RequestError, match="topk_logprobs"):
            await run.sample(PROMPT, params, topk_logprobs="3")  # type: ignore[arg-type]


async def test_policies_are_told_how_long_steps_take(tmp_path: Path, byte_model: Path) -> None:
    async with session(tmp_path / "a", byte_model) as s:
        run = await s.create_run("one")
        facts = s.head.roster[RunId("one")]
        assert (facts.view().tpts_s, facts.view().alone_s) == (0.0, 0.0)
        await one_step(run, 1)
        await one_step(run, 2)
        view = facts.view()
        assert 0.0 < view.alone_s <= view.tpts_s < 60.0
        before = view.tpts_s
        await run.optim_step(ADAM, progress={"step": 2})
        assert facts.view().tpts_s == before, "no step of the job has been done"


async def test_the_seven_operations_and_a_second_life(tmp_path: Path, byte_model: Path) -> None:
    async with session(tmp_path / "a", byte_model) as s:
        run = await s.create_run("one")
        await one_step(run, 1)
        assert run.version == 1
        before = await draw(run)
        saved = await run.save(tmp_path / "kept")
        await one_step(run, 2)
        assert (await draw(run)).samples != before.samples
        await run.load(saved)
        await run.publish()
        assert run.version == 3
        assert (await draw(run)).samples[0].tokens == before.samples[0].tokens
    async with session(tmp_path / "a", byte_model) as s:
        again = await s.create_run("one")
        assert again.version == 3
        assert await again.progress() == {"step": 2}
        assert (await draw(again)).samples[0].tokens == before.samples[0].tokens


async def test_a_run_of_other_settings_is_refused_by_what_differs(
    tmp_path: Path, byte_model: Path
) -> None:
    async with session(tmp_path, byte_model) as s:
        await s.create_run("one", lora=LoraSpec(rank=4))
    async with session(tmp_path, byte_model) as s:
        with pytest.raises(StoreError) as found:
            await s.create_run("one", lora=LoraSpec(rank=4, alpha=32.0, seed=1))
        assert str(found.value) == (
            "run one exists with other settings, lora.alpha 16.0 (not 32.0), lora.seed 0 (not 1): "
            "ask for the same, or use another id"
        )
        assert (await s.create_run("one", lora=LoraSpec(rank=4))).version == 0


async def test_a_run_with_staleness_is_taken_up_with_the_versions_it_may_draw_from(
    tmp_path: Path, byte_model: Path
) -> None:
    async with session(tmp_path, byte_model) as first:
        run = await first.create_run("one", max_staleness=2)
        for step in range(1, 5):
            await one_step(run, step)
        want = await run.sample(PROMPT, SamplingParams(max_tokens=6, seed=9), version=2)
    async with session(tmp_path, byte_model) as second:
        run = await second.create_run("one", max_staleness=2)
        assert run.facts.published == {2, 3, 4}
        assert await run.sample(PROMPT, SamplingParams(max_tokens=6, seed=9), version=2) == want


async def test_saving_never_touches_what_is_there(tmp_path: Path, byte_model: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.tex").write_text("years of work")
    (tmp_path / "link").symlink_to(theirs)
    async with session(tmp_path / "a", byte_model) as s:
        run = await s.create_run("one")
        for path in (theirs, theirs / "thesis.tex", tmp_path / "link"):
            with pytest.raises(RequestError, match="exists already"):
                await run.save(path)
        theirs.rename(tmp_path / "tmp-kept")  # the name under which a save is staged
        with pytest.raises(RequestError, match="tmp-kept exists already"):
            await run.save(tmp_path / "kept")
        theirs = (tmp_path / "tmp-kept").rename(theirs)
        assert (theirs / "thesis.tex").read_text() == "years of work"
        saved = await run.save(tmp_path / "kept")
        with pytest.raises(RequestError, match="exists already"):
            await run.save(saved)
        await one_step(run, 1)  # a refused save has not cost the run its order
        assert run.version == 1


async def test_a_name_that_would_leave_the_directory_is_refused(
    tmp_path: Path, byte_model: Path
) -> None:
    async with session(tmp_path / "a" / "b" / "c", byte_model) as s:
        for name in ("../../../y", "", ".", "..", "x/y", "x\0"):
            with pytest.raises(RequestError, match="run name"):
                await s.create_run(name)
        run = await s.create_run("one")
        with pytest.raises(RequestError, match="give a directory's path"):
            await run.save("x\0")
    assert os.listdir(tmp_path) == ["a"]
    assert os.listdir(tmp_path / "a" / "b" / "c" / "jobs") == ["one"]


async def test_arguments_are_looked_at_before_anything_is_asked(
    tmp_path: Path, byte_model: Path
) -> None:
    async with session(tmp_path, byte_model) as s:
        for wrong in (LoraSpec(seed=2**64), LoraSpec(rank=65)):  # written down, it would stay
            with pytest.raises(RequestError, match="LoRA"):
                await s.create_run("one", lora=wrong)
        run = await s.create_run("one")
        params = SamplingParams(max_tokens=2)
        with pytest.raises(RequestError, match="is text"):
            await run.sample("abc", params)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="n is 1"):
            await run.sample((1,), params, n=1.5)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="one string"):
            await run.sample((1,), replace(params, stop="ab"))  # type: ignore[arg-type]
        for call in (run.forward(7), run.forward_backward([7], "ppo"), run.optim_step(7)):  # type: ignore[arg-type,list-item]
            with pytest.raises(RequestError, match="7"):
                await call
        await one_step(run, 1)


async def test_what_cannot_be_sent_is_refused_and_the_worker_serves_on(
    tmp_path: Path, byte_model: Path
) -> None:
    async with session(tmp_path, byte_model) as s:
        run = await s.create_run("one")
        odd = Datum(input_tokens=(1,), target_tokens=(lambda: 0,), mask=(True,))  # type: ignore[arg-type]
        async with asyncio.timeout(60):
            for call in (run.forward([odd]), run.forward_backward([odd], "ppo")):
                with pytest.raises(RequestError, match="cannot be sent to a worker"):
                    await call
            await one_step(run, 1)


async def test_killed_workers_lose_nothing(tmp_path: Path, byte_model: Path) -> None:
    async def three_steps(directory: Path, *, kill: bool) -> SampleResult:
        events = Events()
        async with session(directory, byte_model, events) as s:
            run = await s.create_run("one")
            await one_step(run, 1)
            data = [datum(PROMPT, await draw(run))]
            await run.forward_backward(data, "ppo")
            if kill:  # the gradient so far is in the dead worker's memory alone
                for worker in list(s.head.pool.workers.values()):
                    worker.kill()
            await run.forward_backward(data, "ppo")
            await run.optim_step(ADAM)
            await run.publish()
            assert events.kinds.count("worker_lost") == (2 if kill else 0)
            return await draw(run)

    calm = await three_steps(tmp_path / "calm", kill=False)
    stormy = await three_steps(tmp_path / "stormy", kill=True)
    assert calm == stormy


async def test_a_refused_operation_consumes_its_number_and_the_run_lives_on(
    tmp_path: Path, byte_model: Path
) -> None:
    async with session(tmp_path / "a", byte_model) as s:
        run = await s.create_run("one")
        data = [datum(PROMPT, await draw(run))]
        for loss, config, why in (
            ("no-such-loss", {}, "known: cross_entropy, importance_sampling, ppo, cispo, dro"),
            ("gspo", {"clip": 0.2}, "known: kl_coef, kl_by_ratio, clip_low_threshold"),
            ("dro", {"beta": -1.0}, "0 or more"),
            ("ppo", {"kl_coef": 0.1}, "ref_logprobs"),
        ):
            with pytest.raises(RequestError, match=why):
                await run.forward_backward(data, loss, config)
        await run.forward_backward(data, "gspo")
        soft = [replace(d, target_tokens=[(t, 3) for t in d.target_tokens]) for d in data]
        soft = [replace(d, inputs={"weights": [(0.5, 0.5)] * len(d.mask)}) for d in soft]
        await run.forward_backward(soft, "cross_entropy")
        await run.optim_step(ADAM)
        assert run.version == 1


async def test_a_paused_run_waits_while_another_goes_on(tmp_path: Path, byte_model: Path) -> None:
    async with session(tmp_path / "a", byte_model) as s:
        held, free = await s.create_run("held"), await s.create_run("free")
        s.head.set_paused(RunId("held"), True)
        waiting = asyncio.create_task(draw(held))
        await one_step(free, 1)
        assert not waiting.done()
        s.head.set_paused(RunId("held"), False)
        assert len((await waiting).samples) == 1


async def test_admission_goes_through_the_policy_and_is_traced(
    tmp_path: Path, byte_model: Path
) -> None:
    events = Events()
    async with session(tmp_path / "a", byte_model, events) as s:
        first, second = await s.create_run("first"), await s.create_run("second")
        entered = asyncio.Event()

        async def roll(run: RunClient) -> None:
            async with run.rollout(60):
                entered.set()
                await asyncio.sleep(0.2)
            run.scored()

        one = asyncio.create_task(roll(first))
        await entered.wait()
        two = asyncio.create_task(roll(second))
        await asyncio.sleep(0.05)
        assert second.facts.stage is Stage.WAIT_ROLLOUT
        assert second.facts.wait is not None
        assert second.facts.wait.reason == "kv_budget"
        await asyncio.gather(one, two)
        admitted = [p.admit for k, p in events.decisions if k == "admission" and p.admit]
        assert admitted == [("first",), ("second",)]


async def test_one_process_owns_a_directory(tmp_path: Path, byte_model: Path) -> None:
    async with session(tmp_path / "a", byte_model):
        with pytest.raises(StoreError, match="in use"):
            await session(tmp_path / "a", byte_model).__aenter__()
