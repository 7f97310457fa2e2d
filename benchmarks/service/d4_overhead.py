"""D4: a step through the service against the same step in ``plait run``: 8 prompts × 4 samples ×
32 new tokens, LoRA rank 8, SmolLM2, strictly on-policy, two cores.

Through the service twice: as a job that is handed in over HTTP, and as a script with the Tinker SDK
that does what a job does (snapshot, sample, gradient, step), whose own work counts. The three go in
turns. A step is timed from end to end of a step; the first is left out. What of it the workers
computed is their own account's (the usage ledger), the first step included: two cores for as long
as one worker has both.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from tempfile import mkdtemp
from typing import Any

from benchmarks.figure import Measured
from benchmarks.live.launches import run, specs_of, spread
from benchmarks.peers.trl_steps import NEW, PROMPTS, RANK, SAMPLES, prompts
from benchmarks.service.clients import drive
from benchmarks.service.jobs import submitted_steps
from benchmarks.service.servers import CORES, Served, plait_serve
from plait.models.registry import resolve
from plait.models.tokenizer import Tokenizer
from plait.runtime.ledger import SAMPLED
from plait.store.store import Store

STEPS, ROUNDS = 5, 3
AT_MOST = 1.10
JOB = f"""
name: step
model: smollm2-135m
groups: {PROMPTS}
samples: {SAMPLES}
steps: {STEPS}
limits: {{max_tokens: {NEW}}}
sampling: {{ignore_eos: true}}
adapter: {{rank: {RANK}, alpha: {2 * RANK}}}
optimizer: {{learning_rate: 1.0e-5}}
algorithm: {{name: reinforce++, loss: importance_sampling}}
environment: {{name: dataset, file: FILE, prompt: prompt, answer: answer, eval_fraction: 0}}
rewards: [{{name: contains}}]
"""
"""Rewards are compared over the whole batch, so that every sample is trained on."""
ANSWERS = ("e", "\u2603")
"""What completions are looked through for, by turns: the one is in all of them and the other in
none. With answers that a sample happens on or not, a step in which none does trains on nothing, and
is no step that a script's can be held against."""


SDK = "s-"
"""What the ids of models begin with that a script has made; a job's have another beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Seconds of a step."""

    step_s: float
    """From a step's end to the next one's: the middle of them."""
    split: Mapping[str, float]
    """Of a mean step, the first included: each worker's part, and what is neither's."""


def measure() -> Measured:
    """The bar over the greater of the two ratios."""
    found: dict[str, list[Timed]] = {"plait run": [], "job": [], "sdk": []}
    tokenizer = Tokenizer(resolve("smollm2-135m"))
    ids = [list(tokenizer.prompt(text)) for text in prompts()]
    for _ in range(ROUNDS):
        found["plait run"].append(_run())
        with plait_serve(cores=CORES) as served:
            rows, scripted = _job(served), _sdk(served, ids)
        found["job"].append(_of_job(rows, served.directory / "plait.db"))
        found["sdk"].append(_of_script(scripted, served.directory / "plait.db"))
    seconds = {name: [one.step_s for one in timed] for name, timed in found.items()}
    middle = {name: median(times) for name, times in seconds.items()}
    ratios = {name: middle[name] / middle["plait run"] for name in ("job", "sdk")}
    worst = max(ratios.values())
    return Measured(
        value=AT_MOST / worst,
        ok=worst <= AT_MOST,
        spread=max(spread(times) for times in seconds.values()),
        detail={
            "seconds_per_step": middle,
            "over_plait_run": ratios,
            "split": {
                name: {part: median(one.split[part] for one in timed) for part in timed[0].split}
                for name, timed in found.items()
            },
            "all": seconds,
        },
    )


def _run() -> Timed:
    file = Path(mkdtemp(prefix="plait-bench-")) / "prompts.jsonl"
    file.write_text(_rows())
    launch = run(specs_of(JOB.replace("FILE", str(file))), "plait", cores=CORES).launch
    (job,) = launch.jobs
    return _of_job(job.steps, launch.root / "store.db")


def _job(served: Served) -> Sequence[Mapping[str, Any]]:
    text = JOB.replace("FILE", "prompts.jsonl")
    return submitted_steps(served, text, {"prompts.jsonl": _rows()})


def _rows() -> str:
    rows = [
        {"prompt": text, "answer": ANSWERS[i % len(ANSWERS)]} for i, text in enumerate(prompts())
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def _sdk(served: Served, ids: list[list[int]]) -> Mapping[str, Any]:
    found = drive(
        served,
        "clients.py",
        phases=["loop"],
        steps=STEPS - 1,
        warmup=1,
        rank=RANK,
        samples=SAMPLES,
        loop_tokens=NEW,
        lr=1e-5,
        prompt_ids=ids,
    )
    return dict(found["loop"])


def _of_job(rows: Sequence[Mapping[str, Any]], store: Path) -> Timed:
    """RuntimeError if a step had nothing to learn from."""
    if idle := [row["step"] for row in rows if not row["train_s"]]:
        raise RuntimeError(f"steps {idle} trained on nothing: they are no measure")
    each = mean(row["step_s"] for row in rows)
    between = median(b["t"] - a["t"] for a, b in pairwise(rows))
    return Timed(step_s=between, split=_split(store, each, scripted=False))


def _of_script(found: Mapping[str, Any], store: Path) -> Timed:
    each = (found["warm_s"] + found["seconds"]) / STEPS
    return Timed(step_s=median(found["steps_s"][0]), split=_split(store, each, scripted=True))


def _split(file: Path, step_s: float, *, scripted: bool) -> dict[str, float]:
    """What the ledger of a launch or of a server that has ended says of a mean step."""
    parts = {"rollout": 0.0, "training": 0.0}
    with Store.at(file) as store:
        for tenant in store.tenants.list():
            for row in store.usage.of_tenant(tenant.tenant_id):
                if row.run_id.startswith(SDK) == scripted:
                    part = "rollout" if row.kind == SAMPLED else "training"
                    parts[part] += row.device_s / STEPS
    return {**parts, "neither": step_s - sum(parts.values())}
