"""The sample lane on real workers: pinned versions, eviction, shares, cancelling, lost workers."""

import asyncio
from pathlib import Path
from typing import Any

import lanes
import pytest
from lanes import PROMPT, work

from plait.core.errors import CLOSED, Limited, NotFound, RequestError, RunEnded
from plait.core.ids import RunId, TenantId
from plait.core.operations import SampleResult
from plait.runtime import messages as m
from plait.runtime.samples import Samples
from plait.service import sample_lane
from plait.service.limits import Hold
from plait.service.ticket import Spent

SLOW = "slow_engine:build"
SOON_S = 60.0
pytestmark = pytest.mark.usefixtures("engine_path")


def tokens(result: SampleResult) -> list[tuple[int, ...]]:
    return [s.tokens for s in result.samples]


async def test_an_older_version_is_sampled_while_newer_ones_are_made_and_it_is_removed(
    tmp_path: Path, byte_model: Path
) -> None:
    async with lanes.lane(tmp_path, byte_model) as (session, lane):
        run = await session.create_run("one", keep_last=1)
        await lanes.learn(run, 20)
        pinned = lanes.version(byte_model, run)
        before = await lane.sample(pinned, work(n=3, seed=4))
        assert before.samples[0].version == 1
        for _ in range(4):
            await lanes.learn(run, 90)
        assert pinned.directory is not None
        assert not pinned.directory.exists(), "the version has been collected"
        assert tokens(await lane.sample(pinned, work(n=3, seed=4))) == tokens(before)
        newest = await lane.sample(lanes.version(byte_model, run), work(n=3, seed=4))
        assert tokens(newest) != tokens(before)


async def test_the_base_model_and_scores_as_deep_as_each_was_asked_for(
    tmp_path: Path, byte_model: Path
) -> None:
    async with lanes.lane(tmp_path, byte_model) as (_, lane):
        source = lanes.base(byte_model)
        result = await lane.sample(source, work(topk_sample=2, topk_prompt=3))
        assert [len(r) for r in result.samples[0].topk] == [2] * 6
        assert [len(r) for r in result.prompt_topk] == [3] * 3
        assert len(result.prompt_logprobs) == 3
        plain = await lane.sample(source, work())
        assert tokens(plain) == tokens(result)
        assert plain.prompt_logprobs == ()
        assert plain.samples[0].version is None


async def test_more_adapters_than_slots_all_draw_what_they_alone_would_draw(
    tmp_path: Path, byte_model: Path
) -> None:
    async with lanes.lane(tmp_path, byte_model, slots=2, engine=SLOW) as (session, lane):
        sources = []
        for i in range(6):
            run = await session.create_run(f"r{i}")
            await lanes.learn(run, 30 + 10 * i)
            sources.append(lanes.version(byte_model, run))
        alone = [tokens(await lane.sample(s, work(seed=1, n=2))) for s in sources]
        assert len({str(t) for t in alone}) == 6
        together = await asyncio.gather(
            *(lane.sample(s, work(seed=1, n=2)) for _ in range(3) for s in sources)
        )
        assert [tokens(r) for r in together] == alone * 3
        assert len(lane._slots) <= 2
        assert len(session.head.samples.guests.paths) <= 2
        assert len(list((tmp_path / "pins").iterdir())) <= 2


async def test_adapters_that_are_wanted_at_once_are_loaded_at_once(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lanes.lane(tmp_path, byte_model, workers=2) as (session, lane):
        runs = [await session.create_run(f"r{i}") for i in range(5)]
        sources = [lanes.version(byte_model, run) for run in runs]
        begun: list[RunId] = []
        all_begun, go_on = asyncio.Event(), asyncio.Event()
        load = Samples.load

        async def first_waits(self: Samples, run_id: RunId, *rest: Any) -> None:
            begun.append(run_id)
            if len(begun) == len(runs):
                all_begun.set()
            if len(begun) == 1:
                await go_on.wait()
            await load(self, run_id, *rest)

        monkeypatch.setattr(Samples, "load", first_waits)
        async with asyncio.timeout(SOON_S):
            drawn = asyncio.gather(*(lane.sample(s, work()) for s in sources))
            await all_begun.wait()
            assert not drawn.done()
            go_on.set()
            assert [len(r.samples) for r in await drawn] == [1] * len(runs)
        assert len(set(begun)) == len(begun) == len(runs), "each is loaded once"


async def test_an_adapter_that_is_gone_fails_its_samples_and_nobody_elses(
    tmp_path: Path, byte_model: Path
) -> None:
    async with lanes.lane(tmp_path, byte_model, slots=1) as (session, lane):
        run = await session.create_run("one")
        good = lanes.version(byte_model, run)
        gone = lanes.version(byte_model, run, of=7)
        asked = [lane.sample(s, work()) for s in (gone, good, gone, good)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(r, NotFound) for r in results] == [True, False, True, False]
        with pytest.raises(RequestError, match="300"):
            await lane.sample(good, work(prompt=(300,)))
        assert (lane._n_flying, lane._tokens_flying) == (0, 0)


async def test_a_tenant_with_a_thousand_samples_does_not_hold_up_one_with_ten(
    tmp_path: Path, byte_model: Path
) -> None:
    async with lanes.lane(tmp_path, byte_model, engine=SLOW) as (_, lane):
        order: list[str] = []

        async def ask(tenant: str) -> None:
            await lane.sample(lanes.base(byte_model, tenant), work(max_tokens=4))
            order.append(tenant)

        greedy = [asyncio.create_task(ask("greedy")) for _ in range(200)]
        await asyncio.sleep(0)
        await asyncio.gather(*(ask("modest") for _ in range(10)))
        assert order.count("greedy") <= 3 * 10 + 20
        for task in greedy:
            task.cancel()
        await asyncio.gather(*greedy, return_exceptions=True)
        assert (len(lane), lane._n_flying) == (0, 0)


async def test_a_parked_sample_says_what_it_waits_for(tmp_path: Path, byte_model: Path) -> None:
    async with lanes.lane(tmp_path, byte_model, engine=SLOW) as (_, lane):
        source = lanes.base(byte_model)
        tickets = [lane.ticket(source, work(n=4)) for _ in range(6)]
        drawing = [asyncio.create_task(lane.draw(t)) for t in tickets]
        await asyncio.sleep(0)
        first, last = lane.waits_for(tickets[0]), lane.waits_for(tickets[-1])
        assert first.state == "active"
        assert last.state == "paused_capacity"
        assert "position 3 of its run, 3 samples" in last.reason
        await asyncio.gather(*drawing)
        assert lane.waits_for(tickets[-1]).state == "active"


async def test_a_tenant_over_its_limit_waits_with_the_reason(
    tmp_path: Path, byte_model: Path
) -> None:
    over, asked = {"mallory"}, 0

    def hold(tenant: TenantId) -> Hold | None:
        nonlocal asked
        asked += 1
        if tenant not in over:
            return None
        return Hold(reason="over 10 tokens a minute", retry_after_s=0.01)

    async with lanes.lane(tmp_path, byte_model, hold=hold) as (_, lane):
        ticket = lane.ticket(lanes.base(byte_model, "mallory"), work())
        drawn = asyncio.create_task(lane.draw(ticket))
        await lane.sample(lanes.base(byte_model, "alice"), work())
        assert lane.waits_for(ticket).state == "paused_rate_limit"
        assert lane.waits_for(ticket).reason == "over 10 tokens a minute"
        over.clear()
        assert len((await drawn).samples) == 1
        assert asked >= 3


async def test_given_up_anywhere_a_sample_leaves_nothing_behind(
    tmp_path: Path, byte_model: Path
) -> None:
    async with lanes.lane(tmp_path, byte_model, engine=SLOW, slots=1) as (session, lane):
        run = await session.create_run("one")
        sources = [lanes.version(byte_model, run), lanes.base(byte_model)]
        tasks = [
            asyncio.create_task(lane.sample(sources[i % 2], work(n=3, max_tokens=50)))
            for i in range(12)
        ]
        for pause in (0.0, 0.0, 0.005, 0.02, 0.05):
            await asyncio.sleep(pause)
            for task in tasks[:2]:
                task.cancel()
            del tasks[:2]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await lane.sample(sources[0], work())
        assert (len(lane), lane._n_flying, lane._tokens_flying) == (0, 0, 0)
        assert [s.n_used for s in lane._slots._slots.values()] == [0]


async def test_too_many_waiting_are_told_to_come_again(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_lane, "MAX_PARKED", 3)
    async with lanes.lane(tmp_path, byte_model, engine=SLOW) as (_, lane):
        source = lanes.base(byte_model)
        tasks = []
        for _ in range(6):
            tasks.append(asyncio.create_task(lane.draw(lane.ticket(source, work(n=4)))))
            await asyncio.sleep(0)
        with pytest.raises(Limited):
            lane.ticket(source, work())
        lane.ticket(lanes.base(byte_model, "another"), work())
        await asyncio.gather(*tasks)


async def test_a_lost_worker_costs_a_sample_nothing_and_its_adapter_is_loaded_again(
    tmp_path: Path, byte_model: Path
) -> None:
    async with lanes.lane(tmp_path, byte_model, engine=SLOW) as (session, lane):
        run = await session.create_run("one")
        await lanes.learn(run, 40)
        source = lanes.version(byte_model, run)
        alone = tokens(await lane.sample(source, work(seed=3, max_tokens=40)))
        seen: list[m.Drawn] = []
        begun = asyncio.Event()

        def on_drawn(news: m.Drawn) -> None:
            seen.append(news)
            begun.set()

        again = asyncio.create_task(
            lane.sample(source, work(seed=3, max_tokens=40), on_drawn=on_drawn)
        )
        await begun.wait()
        (worker,) = session.head.samples._workers.values()
        assert not again.done()
        worker.kill()
        async with asyncio.timeout(SOON_S):
            assert tokens(await again) == alone
        (other,) = session.head.samples._workers.values()
        assert other is not worker
        told: list[int] = []
        for news in seen:
            (first,), (sample,) = news.first, news.samples
            assert first <= len(told), "nothing is left out"
            told[first : first + len(sample.tokens)] = sample.tokens
            assert told == list(alone[0][: len(told)])


async def test_what_is_watched_is_told_as_it_comes(tmp_path: Path, byte_model: Path) -> None:
    async with lanes.lane(tmp_path, byte_model, engine=SLOW) as (_, lane):
        have: list[list[int]] = [[], []]
        words = 0

        def on_drawn(news: m.Drawn) -> None:
            nonlocal words
            words += 1
            for mine, first, sample in zip(have, news.first, news.samples, strict=True):
                assert first == len(mine)
                mine.extend(sample.tokens)

        result = await lane.sample(
            lanes.base(byte_model), work(n=2, max_tokens=60, seed=2), on_drawn=on_drawn
        )
        assert words >= 3, "60 steps of 10 ms are told of in tenths of a second"
        for mine, sample in zip(have, result.samples, strict=True):
            assert mine == list(sample.tokens[: len(mine)])
            assert len(mine) > 20


async def test_what_is_spent_is_told_to_whom_it_concerns(tmp_path: Path, byte_model: Path) -> None:
    spent: list[Spent] = []
    async with lanes.lane(tmp_path, byte_model, on_spent=spent.append, engine=SLOW) as (_, lane):
        for tenant in ("a", "b", "a"):
            await lane.sample(lanes.base(byte_model, tenant), work(n=2))
    assert [s.source.tenant_id for s in spent] == ["a", "b", "a"]
    assert {(s.prompt_tokens, s.sampled_tokens) for s in spent} == {(len(PROMPT), 12)}
    assert spent[2].device_s > 0


async def test_when_the_lane_closes_who_waits_is_told(tmp_path: Path, byte_model: Path) -> None:
    async with lanes.lane(tmp_path, byte_model, engine=SLOW) as (_, lane):
        source = lanes.base(byte_model)
        long = work(n=4, max_tokens=50)
        tasks = [asyncio.create_task(lane.sample(source, long)) for _ in range(9)]
        await asyncio.sleep(0.02)
        n_parked = len(lane)
        assert n_parked > 0
        lane.close(RunEnded(CLOSED))
        with pytest.raises(RunEnded):
            await lane.sample(source, work())
    async with asyncio.timeout(SOON_S):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    undrawn = [r for r in results if not isinstance(r, SampleResult)]
    assert [type(r) for r in undrawn] == [RunEnded] * len(undrawn)
    assert len(undrawn) >= n_parked
    assert len(lane) == 0


async def test_a_tenant_goes_on_when_its_limit_is_raised(tmp_path: Path, byte_model: Path) -> None:
    over = [True]

    def hold(tenant: TenantId) -> Hold | None:
        return Hold(reason="over 5 tokens a minute", retry_after_s=3600.0) if over[0] else None

    async with lanes.lane(tmp_path, byte_model, hold=hold) as (_, lane):
        waiting = asyncio.create_task(lane.sample(lanes.base(byte_model), work()))
        await asyncio.sleep(0)
        assert not waiting.done()
        over[0] = False
        async with asyncio.timeout(SOON_S):
            assert tokens(await waiting)
