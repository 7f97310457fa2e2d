"""Recorded: the jobs of a launch as jobs of a simulation, with exactly the work that they did.

Every sample's prompt, turns, the environment's replies and waits come from ``samples.jsonl``, what
was trained on from ``metrics.jsonl``, limits from the job's configuration. Evaluations are steps
that nothing is learned from, in their place.

Left to others: how long anything takes (``fit``), when it runs (``simulate``).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import yaml

from plait.core.errors import ConfigError
from plait.obs import shapes
from plait.obs.jsonl import read_jsonl
from plait.obs.launch import JobLog, Launch
from plait.obs.layout import LaunchLayout
from plait.sim.spec import JobSpec, Lengths, RecordedStep, Tool

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """A job, and when each of its recorded steps ended."""

    spec: JobSpec
    ends_s: tuple[float, ...]
    """On the launch's clock; as many as ``spec.recorded``."""
    began_s: float
    """When its first rollout was let in."""

    @property
    def durations_s(self) -> tuple[float, ...]:
        """Of each recorded step, with all that it waited for."""
        starts = (self.began_s, *self.ends_s[:-1])
        return tuple(end - start for start, end in zip(starts, self.ends_s, strict=True))


def recorded_jobs(launch: Launch, *, model: str) -> tuple[RecordedJob, ...]:
    """The jobs of ``launch`` that finished at least one step; ``model`` is how the cost model calls
    theirs. ConfigError if there is none, or their samples say no lengths."""
    found = [_job(launch, log, model) for log in launch.jobs if log.steps]
    if not found:
        raise ConfigError(f"{launch.root} has no finished step: there is nothing to replay")
    return tuple(found)


def _job(launch: Launch, log: JobLog, model: str) -> RecordedJob:
    layout = LaunchLayout(launch.root).job(log.name)
    config = _config(layout.config)
    by_step = _samples(layout.samples)
    waits_s = {
        (e["split"], e["step"], e["index"], e["group"]): e["waits_s"]
        for e in launch.job_events(log.name)
        if e["kind"] == "waits"
    }
    rows = [("eval", row) for row in log.evaluations] + [("train", row) for row in log.steps]
    rows.sort(key=lambda item: float(item[1]["t"]))
    steps: list[RecordedStep] = []
    ends_s: list[float] = []
    version = 0
    for split, row in rows:
        samples = [
            {"waits_s": waits_s.get((split, s["step"], s["index"], s["group"]), ()), **s}
            for s in by_step.get((split, row["step"]), ())
        ]
        if not samples:
            continue
        learned = row.get("version") != version
        version = row.get("version", version) if split == "train" else version
        tokens = 0
        if split == "train" and learned:
            tokens = int(row.get("tokens_trained") or 0)
        steps.append(_step(samples, tokens=tokens, evaluates=split == "eval"))
        ends_s.append(float(row["t"]))
    events = launch.job_events(log.name)
    added_s = next((float(e["t"]) for e in events if e["kind"] == "added"), 0.0)
    rolled = (float(e["t"]) for e in events if e.get("stage") == "rollout")
    return RecordedJob(
        spec=_spec(log.name, model, config, steps, arrival_s=added_s),
        ends_s=tuple(ends_s),
        began_s=next(rolled, added_s),
    )


def _spec(
    name: str,
    model: str,
    config: Mapping[str, Any],
    steps: Sequence[RecordedStep],
    arrival_s: float,
) -> JobSpec:
    staleness = int(config["staleness"])
    trained = next((step for step in steps if not step.evaluates), steps[0])
    most = max(max(map(len, step.responses)) for step in steps)
    longest = max(max(turns) for step in steps for turns in step.responses if turns)
    replies = [n for step in steps for results in step.results for n in results]
    return JobSpec(
        name=name,
        model=model,
        pipeline="async" if staleness else "sync",
        staleness=staleness,
        groups=len(trained.prompts),
        samples=len(trained.responses) // len(trained.prompts),
        prompt=_empirical([n for step in steps for n in step.prompts]),
        response=_empirical(
            [n for step in steps for turns in step.responses for n in turns],
            most=max(longest, int(config["max_tokens"])),
        ),
        turns=tuple(
            float(sum(len(turns) == k + 1 for step in steps for turns in step.responses))
            for k in range(most)
        ),
        tool=Tool(latency_s=_mean_wait_s(steps), result=_empirical(replies)) if replies else None,
        steps=len(steps),
        arrival_s=arrival_s,
        weight=float(config["weight"] or 1.0),
        priority=int(config["priority"]),
        recorded=tuple(steps),
    )


def _step(samples: Sequence[Row], *, tokens: int, evaluates: bool) -> RecordedStep:
    groups: defaultdict[int, list[Row]] = defaultdict(list)
    for row in samples:
        groups[row["index"]].append(row)
    size = max(map(len, groups.values()))
    whole = [sorted(rows, key=lambda r: int(r["group"])) for _, rows in sorted(groups.items())]
    whole = [rows for rows in whole if len(rows) == size]  # one torn by a crash is left out
    ordered = [row for rows in whole for row in rows]
    return RecordedStep(
        prompts=tuple(rows[0]["prompt_tokens"] for rows in whole),
        responses=tuple(tuple(row["turn_tokens"]) or (1,) for row in ordered),
        waits_s=tuple(tuple(row["waits_s"]) for row in ordered),
        results=tuple(tuple(row["reply_tokens"]) for row in ordered),
        trained_tokens=tokens,
        evaluates=evaluates,
    )


def _samples(path: Any) -> dict[tuple[str, int], list[Row]]:
    """Rows by split and step; of a sample recorded twice (before and after a crash) the last."""
    found: defaultdict[tuple[str, int], dict[tuple[int, int], Row]] = defaultdict(dict)
    for row in read_jsonl(path, _objection):
        if "turn_tokens" not in row:
            raise ConfigError(
                f"{path} says no lengths of samples: record the launch again with this plait"
            )
        found[row.get("split", "train"), row["step"]][row["index"], row["group"]] = row
    return {key: list(rows.values()) for key, rows in found.items()}


def _objection(row: Row) -> str | None:
    """One of an older plait has no lengths at all, which is told in words of its own."""
    return shapes.sample(row) if "turn_tokens" in row else None


def _config(path: Any) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        return _numbers(found if isinstance(found, dict) else {})
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {path}: put it back as the launch wrote it") from error


def _numbers(config: dict[str, Any]) -> Mapping[str, Any]:
    """What a replay needs of a job's configuration; ValueError if it is no number."""
    limits = config.get("limits")
    limits = limits if isinstance(limits, dict) else {}
    found = {name: config.get(name) or 0 for name in ("staleness", "weight", "priority")}
    found["max_tokens"] = limits.get("max_tokens") or 0
    for name, value in found.items():
        if not isinstance(value, (int, float)) or not isfinite(value):
            raise ValueError(f"{name} is {value!r}")
    return found


def _empirical(values: Sequence[int], most: int = 0) -> Lengths:
    """The distribution of ``values``, for steps beyond the recorded ones."""
    return Lengths(
        kind="empirical", least=0, most=max(most, *values, 1), values=tuple(sorted(values))
    )


def _mean_wait_s(steps: Sequence[RecordedStep]) -> float:
    waits = [wait_s for step in steps for row in step.waits_s for wait_s in row[:-1]]
    return sum(waits) / len(waits) if waits else 0.0
