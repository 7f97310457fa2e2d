"""A session over real workers with the scripted engine, and a step of a run in it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plait.core.ids import RunId
from plait.core.operations import AdamParams, Datum, SampleResult, SamplingParams
from plait.policies.registry import make
from plait.runtime.client import RunClient
from plait.runtime.session import Session
from plait.runtime.settings import Settings

ADAM = AdamParams(learning_rate=1e-2)


PROMPT = (5, 6, 7, 8)


class Events:
    """A journal that keeps what it is told."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.decisions: list[tuple[str, Any]] = []

    def span(self, worker: object, span: object) -> None: ...

    def event(self, run_id: RunId | None, kind: str, **detail: object) -> None:
        self.kinds.append(kind)

    def keeps(self, kind: str) -> bool:
        return True

    def decision(self, kind: str, view: object, state: object, plan: object) -> None:
        self.decisions.append((kind, plan))


def session(directory: Path, model: Path, events: Events | None = None) -> Session:
    return Session(
        directory,
        model=str(model),
        sharing=make("plait"),
        settings=Settings(engine="scripted", kv_blocks=64, cores=2),
        journal=events or Events(),
    )


def datum(prompt: Sequence[int], result: SampleResult) -> Datum:
    sampled = result.samples[0]
    tokens = (*prompt, *sampled.tokens)
    before = len(prompt) - 1
    mask = [False] * before + [True] * len(sampled.tokens)
    return Datum(
        input_tokens=tokens[:-1],
        target_tokens=tokens[1:],
        mask=mask,
        inputs={
            "advantages": [1.0] * len(mask),
            "logprobs": [0.0] * before + list(sampled.logprobs),
        },
    )


async def draw(run: RunClient, seed: int = 1) -> SampleResult:
    return await run.sample(PROMPT, SamplingParams(max_tokens=6, seed=seed))


async def one_step(run: RunClient, step: int) -> None:
    data = [datum(PROMPT, await draw(run, seed=step))]
    await run.forward_backward(data, "ppo")
    await run.optim_step(ADAM, progress={"step": step})
    await run.publish()
