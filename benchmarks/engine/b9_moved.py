"""B9: samples moved between two engines in the middle of their generation, against the same samples
that stayed where they were: how many of 1,000 have the same tokens.

Every sample moves once, at a random place; every second one takes its keys and values along, the
others are computed again. Each state goes through pickle, as between processes. A quarter of them
again in deterministic mode, where log-probs are equal to the bit too.
"""

import pickle
import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from benchmarks.engine.adapters import random_adapter
from benchmarks.figure import Measured
from plait.core.ids import OpId, RunId
from plait.core.operations import Sample, Sampled, SamplingParams
from plait.engines.torch.exact import few_kernels
from plait.engines.torch.rollout import TorchRollout
from plait.models.registry import resolve
from plait.models.tokenizer import Tokenizer

OF = {"tiny": (900, 32), "smollm2-135m": (100, 16)}
"""Samples and their tokens by model."""
RANKS = {RunId("r4"): 4, RunId("r16"): 16}
AT_ONCE = 32
TEXTS = ("What is 17 + 25?", "sort: dcabe", "Name three rivers of Europe and their seas.", "3+4=")


@dataclass(slots=True)
class Tally:
    """Equal continuations by how they moved; the largest difference of a log-prob in these."""

    equal: dict[str, int] = field(default_factory=lambda: {"copied": 0, "recomputed": 0})
    moved: dict[str, int] = field(default_factory=lambda: {"copied": 0, "recomputed": 0})
    logprob_diff: float = 0.0


def measure() -> Measured:
    """Count over both models."""
    few_kernels()  # deterministic mode comes last, and the kernels are settled by the first product
    torch.set_num_threads(1)
    tallies = {name: count(resolve(name), *shape) for name, shape in OF.items()}
    exact = {
        f"{name}, deterministic": count(resolve(name), n // 4, n_tokens, exact=True)
        for name, (n, n_tokens) in OF.items()
    }
    equal = sum(sum(t.equal.values()) for t in tallies.values())
    n = sum(n for n, _ in OF.values())
    detail = {
        name: {"equal": t.equal, "moved": t.moved, "logprob_max_diff": t.logprob_diff}
        for name, t in {**tallies, **exact}.items()
    }
    return Measured(value=equal, ok=equal == n, detail={"of": n, **detail})


def count(model: Path, n: int, n_tokens: int, *, exact: bool = False) -> Tally:
    """Draw ``n`` samples without and with a move."""
    rng = random.Random(n)
    ops = _ops(Tokenizer(model), n, n_tokens, rng)
    stayed, _ = _draw([_engine(model, exact)], ops, None)
    moved, how = _draw([_engine(model, exact), _engine(model, exact)], ops, rng)
    tally = Tally()
    for op_id, want in stayed.items():
        got = moved[op_id]
        tally.moved[how[op_id]] += 1
        if got.tokens == want.tokens and got.stop_reason is want.stop_reason:
            tally.equal[how[op_id]] += 1
            diffs = (abs(a - b) for a, b in zip(got.logprobs, want.logprobs, strict=True))
            tally.logprob_diff = max(tally.logprob_diff, *diffs)
    return tally


def _draw(
    engines: list[TorchRollout], ops: list[Sample], rng: random.Random | None
) -> tuple[dict[OpId, Sampled], dict[OpId, str]]:
    """Draw on the first engine; with ``rng`` each sample moves to the last at a random place."""
    left, due, how = list(reversed(ops)), {}, {}
    here, there = engines[0], engines[-1]
    done: dict[OpId, Sampled] = {}
    n_here = n_steps = 0
    while left or here.has_work() or there.has_work():
        while left and n_here < AT_ONCE:
            op = left.pop()
            here.add(op)
            n_here += 1
            if rng is not None:
                place = n_steps + rng.randrange(1, op.params.max_tokens)
                due.setdefault(place, []).append(op.op_id)
        for engine in engines:
            for op_id, result in engine.step().finished:
                done[op_id] = result.samples[0]
                n_here -= op_id not in how
        n_steps += 1
        for op_id in due.pop(n_steps, ()):
            how[op_id] = "copied" if len(how) % 2 else "recomputed"
            moved = here.export_sample(op_id, kv=how[op_id] == "copied")
            there.import_sample(pickle.loads(pickle.dumps(moved)))
            n_here -= 1
    return done, how


def _ops(tokenizer: Tokenizer, n: int, n_tokens: int, rng: random.Random) -> list[Sample]:
    """Prompts of several lengths, adapters and none, every fifth greedy."""
    prompts = [tuple(tokenizer.prompt(text)) for text in TEXTS]
    params = SamplingParams(max_tokens=n_tokens, ignore_eos=True)
    policies = [*((run_id, 1) for run_id in RANKS), (next(iter(RANKS)), None)]
    ops = []
    for i in range(n):
        run_id, version = rng.choice(policies)
        ops.append(
            Sample(
                op_id=OpId(str(i)),
                run_id=run_id,
                version=version,
                prompt=rng.choice(prompts),
                params=replace(params, seed=i, temperature=0.0 if i % 5 == 0 else 1.0),
            )
        )
    return ops


def _engine(model: Path, exact: bool) -> TorchRollout:
    engine = TorchRollout(model, n_blocks=2048, exact=exact)
    for run_id, rank in RANKS.items():
        engine.load_adapter(run_id, 1, random_adapter(model, rank))
    return engine
