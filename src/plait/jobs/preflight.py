"""Preflight: what can be found wrong with a job before any worker starts.

Room for its samples, its first problems, its rewards (imported in a grader's process), the packages
of its trackers. What only shows later (a long prompt among a million, a hanging reward) is found
where it happens and ends that job alone.
"""

import time
from collections.abc import Sequence

from plait.core.errors import ConfigError, PlaitError
from plait.core.text import told
from plait.envs.apart.source import ApartSource
from plait.envs.contain import contained, loading
from plait.envs.declared import read_declared
from plait.envs.opening import start_environment
from plait.envs.protocol import Closing, TaskSource
from plait.envs.single import SingleTurn
from plait.jobs.named import load_controller
from plait.jobs.room import Room
from plait.jobs.score import Scorer
from plait.jobs.spec import JobSpec
from plait.models.tokenizer import Tokenizer
from plait.obs.trackers import check_tracker
from plait.rewards.pool import RewardPool

PROBED = 16
"""Problems of each split that are looked at: enough to find a template or a limit that is wrong."""


async def preflight(
    specs: Sequence[JobSpec],
    sources: Sequence[TaskSource],
    *,
    room: Room,
    tokenizer: Tokenizer,
) -> None:
    """The first mistake found, as an error that names its job."""
    async with RewardPool() as pool:
        for spec, source in zip(specs, sources, strict=True):
            await check_job(spec, source, room=room, tokenizer=tokenizer, pool=pool)


async def check_job(
    spec: JobSpec, source: TaskSource, *, room: Room, tokenizer: Tokenizer, pool: RewardPool
) -> None:
    """The first mistake found in one job, as an error that names it."""
    try:
        await _check(spec, source, room, tokenizer, pool)
    except PlaitError as error:
        raise type(error)(f"job {spec.name}: {error}") from error


async def _check(
    spec: JobSpec, source: TaskSource, room: Room, tokenizer: Tokenizer, pool: RewardPool
) -> None:
    load_controller(spec)
    read_declared(source)
    if not spec.rewards and isinstance(source, SingleTurn | ApartSource):
        with loading(f"environment {spec.environment.name}"):
            scores = source.scores
        if not scores:
            raise ConfigError(
                f"environment {spec.environment.name} gives no reward: add `rewards:`"
            )
    for tracker in spec.trackers:
        check_tracker(tracker)
    room.check_limits(spec.limits)
    await check_problems(spec, source, room)
    scorer = Scorer(pool, spec, tokenizer, outside=lambda *_: None, now=time.monotonic)
    try:
        await scorer.check()
    finally:
        await scorer.aclose()


async def check_problems(spec: JobSpec, source: TaskSource, room: Room) -> None:
    """Look at the first problems of each split that the job will use."""
    splits = [("train", spec.groups)]
    if spec.evaluation is not None:
        splits.append(("eval", spec.evaluation.items))
    for split, n in splits:
        for index in range(min(n, PROBED)):
            await prompt_tokens(spec, source, index, split, room)


async def prompt_tokens(
    spec: JobSpec, source: TaskSource, index: int, split: str, room: Room
) -> int:
    """Length of a problem's prompt, which fits."""
    n_tokens = await _count(source, index, split)
    room.check_prompt(spec.limits, index, n_tokens)
    return n_tokens


async def _count(source: TaskSource, index: int, split: str) -> int:
    try:
        with contained(f"the environment, asked for {split} problem {index},"):
            env = source.make(index, split)
            try:
                return len(await start_environment(env))  # type: ignore[arg-type]
            finally:
                if isinstance(env, Closing):
                    env.close()
    except PlaitError:
        raise
    except Exception as error:  # a user's environment: what it may raise is not ours to know
        raise ConfigError(f"{split} problem {index} cannot be made: {told(error)}") from error
