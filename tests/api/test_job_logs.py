"""Logs of jobs: each line once, by number, to the end."""

import asyncio
from pathlib import Path

from edge_support import edge, job, until
from jobs_support import file_of, lines, submit

from plait.obs.jsonl import read_jsonl


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
