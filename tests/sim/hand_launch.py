"""Launch directories written by hand: a machine whose every time is a known formula, jobs alone."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CORES = 2


@dataclass(frozen=True)
class Machine:
    """A forward step of n tokens takes ``base_s + token_s · n``; so do updates, in their way."""

    base_s: float = 0.02
    token_s: float = 0.001
    update_s: float = 0.1
    trained_s: float = 0.0005
    publish_s: float = 0.04
    overhead_s: float = 0.3
    half: float = 1.6
    """How much longer everything takes on one of the two cores."""


@dataclass(frozen=True)
class Work:
    """One job: the response lengths of each step's samples, two to a prompt."""

    name: str
    steps: tuple[tuple[int, ...], ...]
    prompt: int = 8
    wait_s: float = 0.0
    """For the environment after the only turn."""
    evaluates: bool = False
    """Four samples after the last step."""


@dataclass
class Writer:
    """Rows of a launch, then its files."""

    events: list[dict[str, Any]] = field(default_factory=list)
    spans: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def write_alone(
    root: Path, machine: Machine, works: Sequence[Work], *, cores: int = CORES
) -> float:
    """The jobs one after another, on all cores or on one; the time of the last end."""
    slower = 1.0 if cores == CORES else machine.half
    out, now = Writer(), 1.0
    for work in works:
        out.events.append({"t": 1.0, "run": work.name, "kind": "added", "job": work.name})
    for work in works:
        out.events.append(
            {"t": now, "run": work.name, "kind": "stage", "stage": "rollout", "step": 0}
        )
        evaluation = ((5, 5, 5, 5),) if work.evaluates else ()
        for i, lengths in enumerate((*work.steps, *evaluation), start=1):
            evaluates = i > len(work.steps)
            now = _roll(out, machine, work, lengths, now, cores, slower)
            now += machine.overhead_s
            step, split = (i - 1, "eval") if evaluates else (i, "train")
            _samples(out, work, lengths, step, split)
            tokens = sum(lengths) + work.prompt * len(lengths)
            row: dict[str, Any] = {"step": step}
            if evaluates:
                row.update(eval_n=len(lengths), eval_reward_mean=0.5)
            else:
                took_s = slower * (machine.update_s + machine.trained_s * tokens)
                out.spans.append(
                    _span("train-0", "train", now, now + took_s, work.name, tokens, cores)
                )
                now += took_s + machine.publish_s
                row.update(version=i, tokens_trained=tokens, publish_s=machine.publish_s)
            out.metrics.setdefault(work.name, []).append({"t": now, **row})
    write(root, out, policy="sequential", elastic=cores == CORES)
    return now


def write_shared(root: Path, works: Sequence[Work], ends_s: Mapping[str, float]) -> None:
    """A launch of the same jobs of which only the ends are told."""
    out = Writer()
    for work in works:
        out.events.append({"t": 1.0, "run": work.name, "kind": "added", "job": work.name})
        for i, lengths in enumerate(work.steps, start=1):
            _samples(out, work, lengths, i, "train")
            end_s = 1.0 + ends_s[work.name] * i / len(work.steps)
            row = {"t": end_s, "step": i, "version": i, "tokens_trained": 1}
            out.metrics.setdefault(work.name, []).append(row)
    write(root, out, policy="plait")


def write(root: Path, out: Writer, *, policy: str, elastic: bool = True) -> None:
    root.mkdir(parents=True)
    info = {
        "policy": policy,
        "model": "smollm2-135m",
        "jobs": list(out.metrics),
        "machine": {"cores": CORES},
        "settings": {"kv_blocks": 4096, "block_size": 4, "max_seqs": 64, "elastic": elastic},
    }
    (root / "launch.json").write_text(json.dumps(info))
    _lines(root / "events.jsonl", out.events)
    _lines(root / "workers.jsonl", out.spans)
    for name, rows in out.metrics.items():
        job = root / "jobs" / name
        job.mkdir(parents=True)
        (job / "config.yaml").write_text("limits: {max_tokens: 64}\n")
        _lines(job / "metrics.jsonl", rows)
        _lines(job / "samples.jsonl", out.samples[name])


def _roll(
    out: Writer,
    machine: Machine,
    work: Work,
    lengths: Sequence[int],
    now: float,
    cores: int,
    slower: float,
) -> float:
    """Forward steps, one span each; a group's prompt is computed with the first."""
    prefill = work.prompt * (len(lengths) // 2)
    for k in range(max(lengths)):
        tokens = sum(n > k for n in lengths) + (prefill if k == 0 else 0)
        took_s = slower * (machine.base_s + machine.token_s * tokens)
        out.spans.append(_span("rollout-0", "rollout", now, now + took_s, work.name, tokens, cores))
        now += took_s
    return now + work.wait_s


def _span(
    worker: str, kind: str, t0: float, t1: float, run: str, tokens: int, cores: int
) -> dict[str, Any]:
    return {
        "worker": worker, "kind": kind, "t0": t0, "t1": t1, "run": run, "tokens": tokens,
        "steps": 1, "threads": cores,
    }  # fmt: skip


def _samples(out: Writer, work: Work, lengths: Sequence[int], step: int, split: str) -> None:
    for i, n in enumerate(lengths):
        row = {
            "step": step, "split": split, "index": 10 * step + i // 2, "group": i % 2,
            "prompt_tokens": work.prompt, "turn_tokens": [n], "reply_tokens": [],
            "waits_s": [work.wait_s],
        }  # fmt: skip
        out.samples.setdefault(work.name, []).append(row)


def _lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
