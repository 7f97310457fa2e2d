"""Logs of jobs: each line once, by number, to the end."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from edge_support import edge, job, until
from jobs_support import file_of, lines, running, submit

from plait.core.ids import TenantId
from plait.obs.jsonl import JsonlTail, read_jsonl
from plait.service.jobs_api import logs


async def test_logs_go_on_behind_what_was_seen(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice")
        (made,) = await submit(alice, file_of(byte_model, job("sums")))
        url = f"/v1/jobs/{made['job_id']}/logs"
        followed = await asyncio.wait_for(lines(alice, f"{url}?follow=true"), 60)
        assert [(i, kind) for i, kind, _ in followed] == [
            ("1", "log"),
            ("2", "log"),
            ("3", "log"),
            ("", "end"),
        ]
        assert followed[0][2]["text"].startswith("step 1: reward")
        assert followed[-1][2]["status"] == "done"
        assert await lines(alice, url, headers={"Last-Event-ID": "2"}) == followed[2:]
        assert await lines(alice, f"{url}?after=3") == followed[3:]


async def test_a_damaged_line_ends_a_log_under_its_number(tmp_path: Path, byte_model: Path) -> None:
    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice")
        (made,) = await submit(alice, file_of(byte_model, job("long", steps=10**6)))
        url = f"/v1/jobs/{made['job_id']}"
        file = e.house.place(str(byte_model)) / "jobs" / made["job_id"] / "metrics.jsonl"

        async def far() -> bool:
            return file.is_file() and len(list(read_jsonl(file))) >= 3

        await until(far)
        await alice.post(f"{url}/pause")
        rows = file.read_text().splitlines(keepends=True)
        file.write_text("".join([*rows[:2], "no JSON\n", *rows[2:]]))
        followed = await asyncio.wait_for(lines(alice, f"{url}/logs?follow=true"), 10)
        assert [(i, kind) for i, kind, _ in followed] == [
            ("1", "log"),
            ("2", "log"),
            ("3", "log"),
            ("", "end"),
        ]
        assert "metrics.jsonl:3 is not JSON" in followed[2][2]["text"]
        seen = await lines(alice, f"{url}/logs", headers={"Last-Event-ID": "3"})
        assert [i for i, _, _ in seen][:1] == ["4"], "what follows it is not lost"


async def test_many_who_follow_a_log_look_into_it_when_there_is_something_new(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_looks = n_read = 0
    mark, read = logs._mark, logs._lines

    def looked(file: Path) -> tuple[int, int]:
        nonlocal n_looks
        n_looks += 1
        return mark(file)

    def counted(tail: JsonlTail) -> tuple[list[tuple[int, dict[str, Any]]], bool]:
        nonlocal n_read
        n_read += 1
        return read(tail)

    monkeypatch.setattr(logs, "LOOK_S", 0.005)
    monkeypatch.setattr(logs, "_mark", looked)
    monkeypatch.setattr(logs, "_lines", counted)
    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice")
        (made,) = await submit(alice, file_of(byte_model, job("held", steps=10**6)))
        url = f"/v1/jobs/{made['job_id']}"
        await until(lambda: running(alice, url))
        await alice.post(f"{url}/pause")
        following = [
            asyncio.create_task(lines(alice, f"{url}/logs?follow=true")) for _ in range(20)
        ]

        async def quiet() -> bool:
            before, at = n_read, n_looks
            while n_looks < at + 50:  # noqa: ASYNC110 - a look is no event of anybody's
                await asyncio.sleep(0.005)
            return n_read == before >= 20

        await until(quiet)
        assert n_read < 20 * 20, "not once for each look"
        await alice.post(f"{url}/cancel")
        told = await asyncio.wait_for(asyncio.gather(*following), 60)
        assert told[0][-1][2]["status"] == "cancelled"
        assert all(one == told[0] for one in told)


async def test_who_follows_a_log_does_so_as_long_as_the_key_opens(
    tmp_path: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "KEY_S", 0.01)
    async with edge(tmp_path, byte_model) as e:
        alice = await e.tenant("alice")
        (made,) = await submit(alice, file_of(byte_model, job("held", steps=10**6)))
        await alice.post(f"/v1/jobs/{made['job_id']}/pause")
        url = f"/v1/jobs/{made['job_id']}/logs?follow=true"
        other = e.client((await e.access.issue(TenantId("alice"))).key)
        one, two = (asyncio.create_task(lines(client, url)) for client in (alice, other))
        await asyncio.sleep(0.1)
        assert not one.done()
        (key, _) = e.access.keys(TenantId("alice"))
        await e.access.revoke(TenantId("alice"), key.key_id)
        assert [kind for _, kind, _ in await asyncio.wait_for(one, 60)].count("end") == 0
        assert not two.done()
        await e.access.put_tenant(TenantId("alice"), disabled=True)
        await asyncio.wait_for(two, 60)
