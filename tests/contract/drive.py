"""Helpers of the engine contract: drive engines to an end and make adapters that differ."""

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TypeVar

from engines import EngineKit

from plait.core.ids import OpId, RunId
from plait.core.operations import AdamParams, Datum, Sample, SampleResult, SamplingParams
from plait.core.runs import LoraSpec
from plait.engines.protocol import ForwardStep, RolloutEngine, TrainEngine, TrainStep

PROMPT = tuple(b"What is 12+7?")
ADAM = AdamParams(learning_rate=0.02, eps=1e-8)
MAX_STEPS = 5000
A, B = RunId("a"), RunId("b")
T = TypeVar("T")


def sample(
    op_id: str,
    run_id: str = "a",
    version: int | None = None,
    *,
    prompt: Sequence[int] = PROMPT,
    n: int = 1,
    first_index: int = 0,
    max_tokens: int = 12,
    temperature: float = 2.0,
    seed: int = 7,
    stop_tokens: tuple[int, ...] = (),
    stop: tuple[str, ...] = (),
    prompt_logprobs: bool = False,
    topk_logprobs: int = 0,
    prompt_targets: tuple[tuple[int, ...], ...] = (),
    prompt_draws: int = 0,
    top_k: int = 0,
) -> Sample:
    # Temperature 2: samples of a peaked model must part too.
    return Sample(
        op_id=OpId(op_id),
        run_id=RunId(run_id),
        version=version,
        prompt=tuple(prompt),
        n=n,
        first_index=first_index,
        prompt_logprobs=prompt_logprobs,
        topk_logprobs=topk_logprobs,
        prompt_targets=prompt_targets,
        prompt_draws=prompt_draws,
        params=SamplingParams(
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            seed=seed,
            stop_tokens=stop_tokens,
            stop=stop,
        ),
    )


def loaded(kit: EngineKit, adapters: tuple[str, str], **limits: int) -> RolloutEngine:
    """An engine that knows version 1 of two runs."""
    engine = kit.rollout(**limits)
    engine.load_adapter(A, 1, adapters[0])
    engine.load_adapter(B, 1, adapters[1])
    return engine


def finish(engine: RolloutEngine) -> tuple[dict[str, SampleResult], list[ForwardStep]]:
    """Step until nothing is runnable."""
    results: dict[str, SampleResult] = {}
    steps: list[ForwardStep] = []
    while engine.has_work():
        step = engine.step()
        steps.append(step)
        results.update(step.finished)
        assert len(steps) < MAX_STEPS, "the engine says that it has work but never ends it"
    return results, steps


def run_ops(engine: RolloutEngine, *ops: Sample) -> dict[str, SampleResult]:
    for op in ops:
        engine.add(op)
    return finish(engine)[0]


def drain(work: Generator[TrainStep, None, T]) -> T:
    """Carry a training operation out to its result."""
    while True:
        try:
            next(work)
        except StopIteration as stop:
            return stop.value


def datum(text: bytes = b"abcdefgh", *, mask_from: int = 0, **inputs: Sequence[float]) -> Datum:
    """``text`` predicts itself, shifted by one."""
    tokens = tuple(text)
    n = len(tokens) - 1
    return Datum(
        input_tokens=tokens[:-1],
        target_tokens=tokens[1:],
        mask=tuple(i >= mask_from for i in range(n)),
        inputs=inputs or {"weights": (1.0,) * n},
    )


def learn(
    engine: TrainEngine, run_id: str, text: bytes, n_steps: int = 1, adam: AdamParams = ADAM
) -> None:
    for _ in range(n_steps):
        drain(engine.forward_backward(RunId(run_id), [datum(text)], "cross_entropy", {}))
        engine.optim_step(RunId(run_id), adam)


def score(engine: TrainEngine, run_id: str, text: bytes = b"score me") -> tuple[float, ...]:
    """What the run's weights say about a text."""
    result = drain(engine.forward(RunId(run_id), [datum(text)], adapter=True))
    return result.logprobs[0]


def adapter(kit: EngineKit, where: Path, text: bytes, *, seed: int = 0, rank: int = 4) -> str:
    """A directory with an adapter that has learned ``text``."""
    where.mkdir(parents=True, exist_ok=True)
    engine = kit.train()
    engine.create(RunId("made"), LoraSpec(rank=rank, seed=seed))
    learn(engine, "made", text, n_steps=6)
    engine.save(RunId("made"), str(where), optimizer=False)
    return str(where)
