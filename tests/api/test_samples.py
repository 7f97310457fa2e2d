"""Samples through the ports: numbered, idempotent, pinned, ended with their session."""

import asyncio
import pickle
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from edge_support import until
from lanes import work
from launches import SCRIPTED
from service_support import ALICE, BOB, SOON_S, Client, house

from plait.core.errors import NotFound, RequestError, RequestLost, SessionEnded
from plait.core.ids import RunId
from plait.core.operations import SampleResult
from plait.runtime.samples import Samples
from plait.service import sample_requests
from plait.service.house import House
from plait.service.ports import CLONE, Failed, Ready, Waiting
from plait.service.snapshots import Snapshots
from plait.service.ticket import Source
from plait.service.work import CheckpointKind, Kind, SaveCheckpoint, Snapshot

SLOW = replace(SCRIPTED, engine="slow_engine:build", max_seqs=8)
pytestmark = pytest.mark.usefixtures("engine_path")


def opened(directory: Path, model: Path, **over: Any) -> House:
    return house(directory, model, sampling=None, **over)


async def get(h: House, request_id: str) -> Any:
    outcome = await h.requests.outcome(ALICE, request_id, wait_s=SOON_S)
    assert isinstance(outcome, Ready), outcome
    return pickle.loads(outcome.body)


async def draw(h: House, sampler: str, seq: int, **over: Any) -> list[tuple[int, ...]]:
    result: SampleResult = await get(h, await h.requests.sample(ALICE, sampler, seq, work(**over)))
    return [s.tokens for s in result.samples]


async def base_sampler(h: House, model: Path) -> tuple[str, str]:
    session = await h.clients.open_session(ALICE, {})
    return session, await h.clients.open_sampler(
        ALICE, session, 0, base_model=str(model), path=None
    )


async def test_a_sample_is_numbered_and_asked_again_the_same(
    tmp_path: Path, byte_model: Path
) -> None:
    async with opened(tmp_path, byte_model) as h:
        _, sampler = await base_sampler(h, byte_model)
        first = await h.requests.sample(ALICE, sampler, 0, work(seed=1))
        assert await h.requests.sample(ALICE, sampler, 0, work(seed=2)) == first
        assert first == f"{sampler}:0:{h.boot}"
        drawn = (await get(h, first)).samples[0].tokens
        assert (await get(h, first)).samples[0].tokens == drawn
        assert await draw(h, sampler, 1, seed=1) == [drawn]
        assert await draw(h, sampler, 2, seed=2) != [drawn]
        told = await h.clients.sampler(ALICE, sampler)
        assert told == {"sampler_id": sampler, "base_model": str(byte_model)}


@pytest.mark.parametrize("rows", [4, 5])
async def test_an_answer_about_a_long_prompt_is_written_beside_the_event_loop(
    rows: int, tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_requests, "LONG_ROWS", 5)
    async with opened(tmp_path, byte_model) as h:
        _, sampler = await base_sampler(h, byte_model)
        threads: list[bool] = []
        write = h.codec.write

        def watched(*args: Any) -> bytes:
            threads.append(threading.current_thread() is threading.main_thread())
            return write(*args)

        monkeypatch.setattr(h.codec, "write", watched)
        asked = work(prompt=tuple(range(1, rows + 2)), topk_prompt=2)
        told = await get(h, await h.requests.sample(ALICE, sampler, 0, asked))
        assert len(told.prompt_topk) == rows
        assert threads == [rows < 5]


async def test_what_fails_says_so_and_whose_fault_it_is(tmp_path: Path, byte_model: Path) -> None:
    async with opened(tmp_path, byte_model) as h:
        _, sampler = await base_sampler(h, byte_model)
        bad = await h.requests.sample(ALICE, sampler, 0, work(prompt=(300,)))
        outcome = await h.requests.outcome(ALICE, bad, wait_s=SOON_S)
        assert isinstance(outcome, Failed)
        assert outcome.category == "user"
        assert "300" in outcome.error
        assert len(await draw(h, sampler, 1)) == 1


async def test_a_fault_of_ours_ends_a_sample_as_one(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        save = SaveCheckpoint(name="kept", kind=CheckpointKind.SAMPLER)  # not loaded beforehand
        path = (await one.get(await one.send(Kind.SAVE_SAMPLER, save))).path
        sampler = await h.clients.open_sampler(ALICE, one.session_id, 0, base_model=None, path=path)

        def broken(*_: object, **__: object) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr(Snapshots, "take", broken)
            asked = await h.requests.sample(ALICE, sampler, 0, work())
            outcome = await h.requests.outcome(ALICE, asked, wait_s=SOON_S)
        assert isinstance(outcome, Failed)
        assert outcome.category == "server"
        assert len(await draw(h, sampler, 1)) == 1


async def test_another_tenants_samples_are_none(tmp_path: Path, byte_model: Path) -> None:
    async with opened(tmp_path, byte_model) as h:
        session, sampler = await base_sampler(h, byte_model)
        mine = await h.requests.sample(ALICE, sampler, 0, work())
        await get(h, mine)
        for asking in (
            h.requests.sample(BOB, sampler, 1, work()),
            h.requests.outcome(BOB, mine, wait_s=0),
            h.requests.cancel(BOB, mine),
            h.requests.ended(BOB, sampler, 0, 0, wait_s=0),
            h.clients.sampler(BOB, sampler),
            h.clients.join(BOB, sampler),
            h.clients.open_sampler(BOB, session, 0, base_model=str(byte_model), path=None),
            h.requests.sample(ALICE, f"{session}:sample:77", 0, work()),
            h.requests.sample(ALICE, "../../etc", 0, work()),
        ):
            with pytest.raises(NotFound):
                await asking
        await h.requests.forget(BOB, [mine])
        assert isinstance(await h.requests.outcome(ALICE, mine, wait_s=0), Ready)


async def test_snapshots_stay_as_they_were_and_an_inflight_one_follows(
    tmp_path: Path, byte_model: Path
) -> None:
    async with opened(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        pinned = (
            await one.get(await one.send(Kind.SAVE_SAMPLER, Snapshot(sampler_seq=0)))
        ).sampler_id
        follows = Snapshot(sampler_seq=1, inflight=True)
        moving = (await one.get(await one.send(Kind.SAVE_SAMPLER, follows))).sampler_id
        before = await draw(h, pinned, 0, n=4)
        assert await draw(h, moving, 0, n=4) == before
        for seed in range(5):
            await one.gradient(seed)
            await one.get(await one.step())
        assert await draw(h, pinned, 1, n=4) == before
        after = await draw(h, moving, 1, n=4)
        assert after != before
        newest = Snapshot(sampler_seq=2)
        sampler = (await one.get(await one.send(Kind.SAVE_SAMPLER, newest))).sampler_id
        assert await draw(h, sampler, 0, n=4) == after
        kept = tmp_path / "samplers" / one.session_id
        assert len(list(kept.iterdir())) == 3
        await h.clients.finish(ALICE, one.session_id, "success", "")
        assert not kept.exists()
        with pytest.raises(SessionEnded):
            await h.requests.sample(ALICE, pinned, 2, work())
        assert (await h.clients.sampler(ALICE, pinned))["base_model"] == str(byte_model)


async def test_a_snapshot_is_loaded_before_anybody_samples_it(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[RunId] = []
    begun, load = asyncio.Event(), Samples.load

    async def watched(self: Samples, run_id: RunId, *rest: Any) -> None:
        loads.append(run_id)
        begun.set()
        await load(self, run_id, *rest)

    monkeypatch.setattr(Samples, "load", watched)
    async with opened(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        made = await one.send(Kind.SAVE_SAMPLER, Snapshot(sampler_seq=0))
        sampler = (await one.get(made)).sampler_id
        async with asyncio.timeout(SOON_S):
            await begun.wait()
        assert len(await draw(h, sampler, 0)) == 1
        assert len(loads) == 1


async def test_a_sampler_of_a_checkpoint_goes_on_when_that_is_deleted(
    tmp_path: Path, byte_model: Path
) -> None:
    async with opened(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        await one.gradient(1)
        await one.step()
        save = SaveCheckpoint(name="best", kind=CheckpointKind.SAMPLER)
        path = (await one.get(await one.send(Kind.SAVE_SAMPLER, save))).path
        other = await h.clients.open_session(ALICE, {})
        sampler = await h.clients.open_sampler(ALICE, other, 0, base_model=None, path=path)
        assert (await h.clients.sampler(ALICE, sampler))["model_path"] == path
        before = await draw(h, sampler, 0, n=4)
        await h.models.delete(ALICE, path)
        assert await draw(h, sampler, 1, n=4) == before
        with pytest.raises(NotFound):
            await h.clients.open_sampler(ALICE, other, 1, base_model=None, path=path)
        with pytest.raises(NotFound):
            await h.clients.open_sampler(ALICE, other, 2, base_model="elsewhere", path=None)
        with pytest.raises(RequestError):
            await h.clients.open_sampler(ALICE, other, 3, base_model=None, path=None)


async def test_a_number_that_a_sampler_has_is_given_to_no_other(
    tmp_path: Path, byte_model: Path
) -> None:
    """Who took it for another's would sample weights that are not those asked for."""
    async with opened(tmp_path, byte_model) as h:
        one = await Client.open(h)
        two = Client(h, ALICE, one.session_id, 1)
        for client in (one, two):
            await client.get(await client.create(byte_model))
        paths = []
        for name in ("a", "b"):
            save = SaveCheckpoint(name=name, kind=CheckpointKind.SAMPLER)
            paths.append((await one.get(await one.send(Kind.SAVE_SAMPLER, save))).path)

        async def of(path: str | None, seq: int, base: str | None = None) -> str:
            return await h.clients.open_sampler(
                ALICE, one.session_id, seq, base_model=base, path=path
            )

        snapshot = Snapshot(sampler_seq=0)
        made = (await one.get(await one.send(Kind.SAVE_SAMPLER, snapshot))).sampler_id
        assert (await one.get(await one.send(Kind.SAVE_SAMPLER, snapshot))).sampler_id == made
        other = await two.end(await two.send(Kind.SAVE_SAMPLER, snapshot))
        assert isinstance(other, Failed)
        assert "give another number" in other.error
        with pytest.raises(RequestError, match="give another number"):
            await of(paths[0], 0)
        ends = await asyncio.gather(of(paths[0], 1), of(paths[1], 1), return_exceptions=True)
        assert sorted(isinstance(end, RequestError) for end in ends) == [False, True]
        kept = paths[isinstance(ends[0], RequestError)]
        assert await of(kept, 1) == f"{one.session_id}:sample:1"
        with pytest.raises(RequestError, match="give another number"):
            await of(None, 1, str(byte_model))
        assert await of(None, 2, str(byte_model)) == await of(None, 2, str(byte_model))


async def test_a_restart_serves_samplers_and_has_samples_asked_again(
    tmp_path: Path, byte_model: Path
) -> None:
    async with opened(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        await one.gradient(1)
        await one.step()
        made = await one.send(Kind.SAVE_SAMPLER, Snapshot(sampler_seq=0))
        sampler = (await one.get(made)).sampler_id
        number = await h.clients.join(ALICE, sampler)
        before = await draw(h, sampler, 0, n=4)
        asked = await h.requests.sample(ALICE, sampler, 1, work())
        torn = tmp_path / "samplers" / "s-0123456789abcdef" / "0-1"
        torn.mkdir(parents=True)
    async with opened(tmp_path, byte_model) as h:
        with pytest.raises(RequestLost):
            await h.requests.outcome(ALICE, asked, wait_s=0)
        assert await draw(h, sampler, 0, n=4) == before
        assert not torn.exists()
        assert await h.clients.join(ALICE, sampler) >= number


async def test_a_session_that_ends_takes_its_samples_along(
    tmp_path: Path, byte_model: Path
) -> None:
    async with opened(tmp_path, byte_model, settings=SLOW) as h:
        session, sampler = await base_sampler(h, byte_model)
        _, other = await base_sampler(h, byte_model)
        asked = [
            await h.requests.sample(ALICE, sampler, i, work(n=4, max_tokens=100)) for i in range(8)
        ]
        kept = await h.requests.sample(ALICE, other, 0, work())
        states = [await h.requests.outcome(ALICE, r, wait_s=0.05) for r in asked]
        assert all(isinstance(s, Waiting) for s in states)
        last = states[-1]
        assert isinstance(last, Waiting)
        assert last.state == "paused_capacity"
        await h.clients.finish(ALICE, session, "success", "")
        for request_id in asked:
            outcome = await h.requests.outcome(ALICE, request_id, wait_s=SOON_S)
            assert isinstance(outcome, Failed), outcome
        assert (await get(h, kept)).samples


async def test_cancelled_ones_end_and_others_do_not(tmp_path: Path, byte_model: Path) -> None:
    async with opened(tmp_path, byte_model, settings=SLOW) as h:
        _, sampler = await base_sampler(h, byte_model)
        asked = [
            await h.requests.sample(ALICE, sampler, i, work(n=4, max_tokens=30)) for i in range(6)
        ]
        for request_id in (asked[0], asked[5]):  # one at work, one parked
            await h.requests.cancel(ALICE, request_id)
        outcomes = [await h.requests.outcome(ALICE, r, wait_s=SOON_S) for r in asked]
        assert [isinstance(o, Failed) for o in outcomes] == [True, *[False] * 4, True]
        await h.requests.cancel(ALICE, asked[1])
        assert isinstance(await h.requests.outcome(ALICE, asked[1], wait_s=0), Ready)


async def test_ends_are_told_by_cursor_for_each_copy_of_a_client(
    tmp_path: Path, byte_model: Path
) -> None:
    async with opened(tmp_path, byte_model) as h:
        _, sampler = await base_sampler(h, byte_model)
        ids = [await h.requests.sample(ALICE, sampler, i, work()) for i in range(3)]
        clone = await h.requests.sample(ALICE, sampler, 2 * CLONE + 1, work(prompt=(300,)))
        for request_id in (*ids, clone):
            await h.requests.outcome(ALICE, request_id, wait_s=SOON_S)
        ended, cursor = await h.requests.ended(ALICE, sampler, 0, 0, wait_s=0)
        assert sorted(e.request_id for e in ended) == ids
        assert cursor == 3
        assert all(e.n_bytes > 0 and not e.failed for e in ended)
        other, _ = await h.requests.ended(ALICE, sampler, 2, 0, wait_s=0)
        assert [(e.request_id, e.failed) for e in other] == [(clone, True)]
        assert await h.requests.ended(ALICE, sampler, 0, cursor, wait_s=0.01) == ((), 3)
        waits = asyncio.create_task(h.requests.ended(ALICE, sampler, 0, cursor, wait_s=SOON_S))
        await asyncio.sleep(0)
        more = await h.requests.sample(ALICE, sampler, 9, work())
        ended, cursor = await waits
        assert ([e.request_id for e in ended], cursor) == ([more], 4)
        # A lost response is asked for again with the same cursor.
        again, _ = await h.requests.ended(ALICE, sampler, 0, 3, wait_s=0)
        assert again == ended


async def test_copies_of_a_client_that_are_none_cost_nothing(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_requests, "MAX_LOGS", 4)
    async with opened(tmp_path, byte_model) as h:
        session, sampler = await base_sampler(h, byte_model)
        other = await h.clients.open_sampler(
            ALICE, session, 1, base_model=str(byte_model), path=None
        )
        ids = [await h.requests.sample(ALICE, sampler, i, work()) for i in range(2)]
        for request_id in ids:
            await h.requests.outcome(ALICE, request_id, wait_s=SOON_S)
        _, cursor = await h.requests.ended(ALICE, sampler, 0, 0, wait_s=0)
        await h.requests.ended(ALICE, other, 0, 0, wait_s=0)
        await h.requests.forget(ALICE, ids[:1])
        logs = h.sampling.samples._logs
        waits = asyncio.create_task(h.requests.ended(ALICE, sampler, 1, 0, wait_s=SOON_S))

        async def asked() -> bool:
            return (sampler, 1) in logs

        await until(asked)
        for clone in range(2, 20):
            assert await h.requests.ended(ALICE, sampler, clone, 0, wait_s=0) == ((), 0)
        assert [clone for name, clone in logs if name == sampler] == [1, 17, 18, 19]
        assert (other, 0) in logs, "it is another sampler's"
        # Whose log has gone is told again what it has not had forgotten, behind its cursor.
        again, cursor = await h.requests.ended(ALICE, sampler, 0, cursor, wait_s=0)
        assert ([e.request_id for e in again], cursor) == (ids[1:], 3)
        mine = await h.requests.sample(ALICE, sampler, CLONE, work())
        told, _ = await waits
        assert [e.request_id for e in told] == [mine], "who waits is not forgotten"


async def test_answers_are_let_go_when_told_and_when_nobody_will_ask(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, byte_model) as h:
        _, sampler = await base_sampler(h, byte_model)
        first = await h.requests.sample(ALICE, sampler, 0, work())
        await get(h, first)
        await h.requests.forget(ALICE, [first, "nonsense", f"{sampler}:5:x"])
        with pytest.raises(RequestLost):
            await h.requests.outcome(ALICE, first, wait_s=0)
        read = await h.requests.sample(ALICE, sampler, 1, work())
        await get(h, read)
        monkeypatch.setattr(sample_requests, "READ_S", 0.0)
        unread = await h.requests.sample(ALICE, sampler, 2, work())
        await draw(h, sampler, 3)
        with pytest.raises(RequestLost):
            await h.requests.outcome(ALICE, read, wait_s=0)
        assert isinstance(await h.requests.outcome(ALICE, unread, wait_s=SOON_S), Ready)
        monkeypatch.setattr(sample_requests, "MAX_BYTES", 10)
        kept = await h.requests.sample(ALICE, sampler, 4, work())
        for _ in range(200):
            await asyncio.sleep(0.01)
            try:
                await h.requests.outcome(ALICE, kept, wait_s=0)
            except RequestLost:
                break
        else:
            pytest.fail("it takes more than all answers together may")


async def test_a_running_jobs_weight_counts_among_its_tenants_runs(
    tmp_path: Path, byte_model: Path
) -> None:
    async with opened(tmp_path, byte_model) as h:
        await h.access.put_tenant(ALICE.tenant_id, weight=4.0)
        launch = await h.launch(str(byte_model))
        lane = await h.lane(str(byte_model))
        for name, weight in (("half", 0.5 * 4.0), ("whole", 4.0)):  # as the desk has them made
            await launch.session.create_run(name, tenant_id=ALICE.tenant_id, weight=weight)
        shares = [
            lane._share(Source(tenant_id=ALICE.tenant_id, base_model=str(byte_model), run=run))
            for run in ("half", "whole", "", "asleep")
        ]
        assert [share.run_weight for share in shares] == [0.5, 1.0, 1.0, 1.0]
        assert {share.weight for share in shares} == {4.0}


async def test_answers_that_were_let_go_and_sessions_that_ended_take_nothing(
    tmp_path: Path, byte_model: Path
) -> None:
    async with opened(tmp_path, byte_model) as h:
        one = await Client.open(h)
        await one.create(byte_model)
        made = await one.send(Kind.SAVE_SAMPLER, Snapshot(sampler_seq=1, inflight=True))
        sampler = (await one.get(made)).sampler_id
        requests, samplers = h.sampling.samples, h.sampling.samplers
        await h.requests.ended(ALICE, sampler, 0, 0, wait_s=0)
        for seq in range(5):
            asked = await h.requests.sample(ALICE, sampler, seq, work())
            await get(h, asked)
            await h.requests.forget(ALICE, [asked])
        kept = await h.requests.sample(ALICE, sampler, 5, work())
        await get(h, kept)
        ended, cursor = await h.requests.ended(ALICE, sampler, 0, 0, wait_s=0)
        assert ([e.request_id for e in ended], cursor) == ([kept], 6)
        ((_, log),) = requests._logs.items()
        assert len(log.ends) == 1, "nobody is told of the others any more"
        await h.requests.forget(ALICE, [kept])
        await h.clients.finish(ALICE, one.session_id, "success", "")
        assert (requests._logs, requests._requests, requests._ended) == ({}, {}, {})
        assert (samplers._rows, samplers._following, samplers._joined) == ({}, {}, {})
