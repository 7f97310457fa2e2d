"""Trace: a launch as a Chrome trace, which Perfetto (https://ui.perfetto.dev) opens.

One process per worker with one thread track per job (a batch over several jobs shows on each, with
its part of the tokens), one process for the jobs with a track of stages each, tool calls and
rewards as asynchronous slices, and counters of tokens per second and cache blocks per worker.
Times are microseconds of running time. Nothing is decided here.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plait.obs.jsonl import dumps
from plait.obs.launch import Launch, read_launch, shares
from plait.obs.stages import ENDS, stages
from plait.store.files import disk_errors

JOBS_PID = 1
"""The jobs' process comes first; workers follow."""

Event = dict[str, Any]


def build_trace(launch: Launch) -> dict[str, Any]:
    """The trace as JSON values."""
    events = [*_worker_events(launch), *_job_events(launch)]
    named = [e for e in events if e["ph"] == "M"]
    timed = sorted((e for e in events if e["ph"] != "M"), key=lambda e: e["ts"])
    return {
        "traceEvents": named + timed,
        "displayTimeUnit": "ms",
        "otherData": {"policy": launch.info.get("policy"), "model": launch.info.get("model")},
    }


def write_trace(launch_dir: str | Path) -> Path:
    """Write ``trace.json`` of a launch directory, whole or not at all; its path."""
    launch = read_launch(launch_dir)
    path = launch.root / "trace.json"
    staging = path.with_name(f"tmp-{path.name}")
    with disk_errors(path):
        staging.write_text(dumps(build_trace(launch)), encoding="utf-8")
        os.replace(staging, path)
    return path


def _worker_events(launch: Launch) -> Iterator[Event]:
    tids = {job.name: tid for tid, job in enumerate(launch.jobs, start=1)}
    seen: set[tuple[int, int]] = set()
    for pid, worker in enumerate(launch.workers, start=JOBS_PID + 1):
        yield _named("process_name", pid, 0, f"worker {worker}")
        yield {**_named("process_sort_index", pid, 0, ""), "args": {"sort_index": pid}}
        for span in launch.spans:
            if span["worker"] != worker:
                continue
            parts = {launch.name(run): part for run, part in shares(span).items()}
            for job, part in parts.items() or [("", 1.0)]:
                tid = tids.get(job, 0)
                if (pid, tid) not in seen:
                    seen.add((pid, tid))
                    yield _named("thread_name", pid, tid, job or "all jobs")
                yield _slice(pid, tid, span, part, len(parts))
            yield from _counters(pid, span)


def _slice(pid: int, tid: int, span: dict[str, Any], part: float, n_jobs: int) -> Event:
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": span["kind"],
        "cat": "worker",
        "ts": _us(span["t0"]),
        "dur": _us(span["t1"]) - _us(span["t0"]),
        "args": {
            "tokens": round(span.get("tokens", 0) * part),
            "jobs_in_batch": n_jobs,
            "threads": span.get("threads", 0),
            "steps": span.get("steps", 0),
        },
    }


def _counters(pid: int, span: dict[str, Any]) -> Iterator[Event]:
    if span["kind"] != "rollout":
        return
    length_s = max(span["t1"] - span["t0"], 1e-9)
    values = {
        "tokens/s": span.get("tokens", 0) / length_s,
        "cache blocks": span.get("kv_blocks_used", 0),
    }
    for name, value in values.items():
        yield {
            "ph": "C",
            "pid": pid,
            "tid": 0,
            "name": name,
            "ts": _us(span["t0"]),
            "args": {name: round(value, 1)},
        }


def _job_events(launch: Launch) -> Iterator[Event]:
    yield _named("process_name", JOBS_PID, 0, "jobs")
    yield {**_named("process_sort_index", JOBS_PID, 0, ""), "args": {"sort_index": 0}}
    for tid, job in enumerate(launch.jobs, start=1):
        yield _named("thread_name", JOBS_PID, tid, job.name)
        events = launch.job_events(job.name)
        base = {"pid": JOBS_PID, "tid": tid}
        for held in stages(events, launch.wall_s):
            ts = _us(held.t0)
            yield {
                **base,
                "ph": "X",
                "name": held.what,
                "cat": "stage",
                "ts": ts,
                "dur": _us(held.t1) - ts,
            }
        for n, event in enumerate(events):
            if event["kind"] == "outside":
                ident = f"{job.name}/{event['what']}/{event['key']}/{n}"
                outside = {**base, "name": event["what"], "cat": event["what"], "id": ident}
                yield {**outside, "ph": "b", "ts": _us(event["t0"]), "args": {"key": event["key"]}}
                yield {**outside, "ph": "e", "ts": _us(event["t1"])}
            elif event["kind"] in (*ENDS, "error", "paused", "resumed"):
                detail = {k: v for k, v in event.items() if k not in ("t", "run", "kind")}
                instant = {"ph": "i", "s": "t", "name": event["kind"], "cat": "job"}
                yield {**base, **instant, "ts": _us(event["t"]), "args": detail}
        for row in job.steps:
            args = {k: row.get(k) for k in ("reward_mean", "loss", "version", "tokens_sampled")}
            step = {"ph": "i", "s": "t", "name": f"step {row['step']}", "cat": "step"}
            yield {**base, **step, "ts": _us(row["t"]), "args": args}


def _named(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "ts": 0, "args": {"name": name}}


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
