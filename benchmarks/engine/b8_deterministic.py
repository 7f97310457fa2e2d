"""B8: deterministic mode: bits alone and in company, and what it costs.

Bits on the shipped model through whole launches (a job alone, on one core, and with three others on
two) and on SmolLM2 through the engines; cost on SmolLM2, one step of 8 prompts × 4 samples × 16 new
tokens, modes alternated.
"""

import asyncio
import itertools
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.figure import Measured
from benchmarks.live.launches import specs_of, spread
from plait.cli.run import drive
from plait.core.ids import OpId, RunId
from plait.core.operations import AdamParams, Datum, Sample, SampleResult, SamplingParams
from plait.core.runs import LoraSpec
from plait.engines.torch.rollout import TorchRollout
from plait.engines.torch.trainer import TorchTrain
from plait.jobs.spec import JobSpec
from plait.models.registry import resolve
from plait.policies.registry import DEFAULT
from plait.runtime.settings import Settings

AT_MOST = 1.15
CORES, REPEATS = 2, 3
PROMPTS, SAMPLES, PROMPT, NEW = 8, 4, 32, 16
TINY = """
groups: 4
samples: 4
steps: 4
limits: {{max_tokens: 12}}
environment: {{name: {environment}}}
name: {name}
"""
MINE, OTHER = RunId("mine"), RunId("other")
Found = dict[str, SampleResult]


def measure() -> Measured:
    """Share of results with equal bits, and the cost of a step."""
    equal = {**_launches(), **_engines()}
    ratios, seconds = _cost()
    cost = median(ratios)
    same = all(equal.values())
    return Measured(
        value=AT_MOST / cost if same else 0.0,
        ok=same and cost <= AT_MOST,
        spread=spread(ratios),
        detail={"equal": equal, "cost": cost, "at_most": AT_MOST, **seconds},
    )


def _launches() -> dict[str, bool]:
    """A single-turn and a multi-turn job alone and beside the other one and two more."""
    tasks = {"sum": "tiny-sum", "sort": "tiny-sort", "more": "tiny-sum", "again": "tiny-sort"}
    specs = {
        name: specs_of(TINY.format(name=name, environment=environment))[0]
        for name, environment in tasks.items()
    }
    with tempfile.TemporaryDirectory(prefix="plait-bench-") as folder:
        together = _launch(Path(folder) / "all", list(specs.values()), cores=2)
        return {
            f"launch {name}": _files(together, name)
            == _files(_launch(Path(folder) / name, [specs[name]], cores=1), name)
            for name in ("sum", "sort")
        }


def _launch(directory: Path, specs: list[JobSpec], *, cores: int) -> Path:
    settings = Settings(cores=cores, deterministic=True)
    asyncio.run(drive(specs, directory, policy=DEFAULT, settings=settings, quiet=True))
    return directory


def _files(directory: Path, name: str) -> list[bytes]:
    """A job's samples and the files of its last version."""
    job = directory / "jobs" / name
    last = sorted((job / "versions").iterdir())[-1]
    return [p.read_bytes() for p in (job / "samples.jsonl", *sorted(last.iterdir()))]


@contextmanager
def engines(*, exact: bool) -> Iterator[tuple[TorchRollout, TorchTrain]]:
    """SmolLM2's engines with two runs' adapters at version 1."""
    torch.set_num_threads(CORES)
    model = resolve("smollm2-135m")
    train = TorchTrain(model, exact=exact)
    rollout = TorchRollout(model, n_blocks=1024, exact=exact)
    with tempfile.TemporaryDirectory() as folder:
        for run_id in (MINE, OTHER):
            restart(train, run_id)
            path = Path(folder) / run_id
            path.mkdir()
            train.save(run_id, str(path), optimizer=False)
            rollout.load_adapter(run_id, 1, str(path))
    yield rollout, train


def restart(train: TorchTrain, run_id: RunId) -> None:
    """The run's first weights, moved so that they matter."""
    train.drop(run_id)
    train.create(run_id, LoraSpec(rank=8, seed=len(run_id)))
    flat = train._run(run_id).flat
    flat.add_(torch.randn(flat.shape, generator=torch.Generator().manual_seed(1)), alpha=0.01)


def requests(run_id: RunId, vocab_size: int, *, n: int = PROMPTS, new: int = NEW) -> list[Sample]:
    """Random prompts, all answers equally long."""
    g = random.Random(run_id)
    return [
        Sample(
            op_id=OpId(f"{run_id}/{i}"),
            run_id=run_id,
            version=1,
            prompt=tuple(g.randrange(vocab_size - 8) for _ in range(PROMPT)),
            n=SAMPLES,
            params=SamplingParams(max_tokens=new, seed=i, ignore_eos=True),
        )
        for i in range(n)
    ]


def draw(rollout: TorchRollout, ops: list[Sample], threads: tuple[int, ...] = (CORES,)) -> Found:
    """Draw them all."""
    found: Found = {}
    for op, n in zip(ops, itertools.cycle(threads), strict=False):
        torch.set_num_threads(n)
        rollout.add(op)
        found |= rollout.step().finished
    while rollout.has_work():
        found |= rollout.step().finished
    return found


def data_of(ops: list[Sample], found: Found) -> list[Datum]:
    """Samples as training sequences; within a group good and bad ones take turns."""
    data = []
    for op in ops:
        for i, s in enumerate(found[op.op_id].samples):
            tokens, n = (*op.prompt, *s.tokens), len(op.prompt) + len(s.tokens) - 1
            data.append(
                Datum(
                    input_tokens=tokens[:-1],
                    target_tokens=tokens[1:],
                    mask=[k >= len(op.prompt) - 1 for k in range(n)],
                    inputs={
                        "advantages": [1.0 - 2 * (i % 2)] * n,
                        "logprobs": [0.0] * (len(op.prompt) - 1) + list(s.logprobs),
                        "weights": [0.01] * n,
                    },
                )
            )
    return data


def update(train: TorchTrain, data: list[Datum], threads: int = CORES) -> torch.Tensor:
    """The weights after one step."""
    torch.set_num_threads(threads)
    for _ in train.forward_backward(MINE, data, "ppo", {}):
        pass
    train.optim_step(MINE, AdamParams(learning_rate=1e-3, grad_clip_norm=0.1))
    return train._run(MINE).flat.clone()


def _engines() -> dict[str, bool]:
    with engines(exact=True) as (rollout, train):
        vocab_size = rollout.shape.vocab_size
        mine = requests(MINE, vocab_size, n=3, new=8)
        alone = draw(rollout, mine, (1,))
        crowd = [
            op for pair in zip(requests(OTHER, vocab_size, n=3), mine, strict=True) for op in pair
        ]
        shared = draw(rollout, crowd, (2, 1))
        weights = []
        for threads in (1, 2):
            restart(train, MINE)
            weights.append(update(train, data_of(mine, alone), threads))
    return {
        "samples": all(shared[op.op_id] == alone[op.op_id] for op in mine),
        "weights": torch.equal(*weights),
    }


def _cost() -> tuple[list[float], dict[str, Any]]:
    """Time of a step in deterministic mode over the other's, and the parts in seconds."""
    seconds: dict[str, dict[str, list[float]]] = {}
    with engines(exact=False) as plain, engines(exact=True) as exact:
        kinds = {"normal": plain, "deterministic": exact}
        ops = requests(MINE, plain[0].shape.vocab_size)
        for repeat in range(REPEATS + 1):
            for name, (rollout, train) in kinds.items():
                t0 = time.perf_counter()
                found = draw(rollout, ops)
                t1 = time.perf_counter()
                update(train, data_of(ops, found))
                t2 = time.perf_counter()
                if repeat:  # the first one warms up
                    took = seconds.setdefault(name, {"rollout_s": [], "train_s": []})
                    took["rollout_s"].append(t1 - t0)
                    took["train_s"].append(t2 - t1)
    steps = [
        [a + b for a, b in zip(s["rollout_s"], s["train_s"], strict=True)]
        for s in (seconds["normal"], seconds["deterministic"])
    ]
    ratios = [b / a for a, b in zip(*steps, strict=True)]
    medians = {n: {k: round(median(v), 3) for k, v in s.items()} for n, s in seconds.items()}
    return ratios, medians
