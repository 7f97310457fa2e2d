"""Collect: the trajectories of one step (or one evaluation): prompts, samples, rewards.

One batch is admitted as a whole (``RunClient.rollout``); inside, every sample goes its own way.
Groups whose samples have one turn and one prompt are drawn by a single operation, which prefills
the prompt once.
"""

import asyncio
from dataclasses import dataclass

from plait.core.operations import Sampled, SamplingParams
from plait.core.text import told
from plait.envs.closing import close_environment
from plait.envs.contain import contained
from plait.envs.opening import start_environment
from plait.envs.protocol import Environment
from plait.envs.turns import read_stops, read_tokens
from plait.jobs.context import JobContext
from plait.jobs.episode import Episode, fail, play
from plait.obs.records import SampleRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What to collect. ``split`` and ``first`` name the problems, ``tag`` the draws."""

    split: str
    first: int
    n_groups: int
    n_samples: int
    tag: tuple[object, ...]
    evaluating: bool = False
    version: int | None = None
    """Version to draw from; ``None``: the newest when the batch is admitted."""


@dataclass(slots=True, kw_only=True)
class Collected:
    """A batch's episodes by group, and where the time went."""

    groups: list[list[Episode]]
    wait_s: float
    rollout_s: float
    reward_s: float

    @property
    def episodes(self) -> list[Episode]:
        return [e for group in self.groups for e in group]

    @property
    def rewards(self) -> list[float]:
        return [e.reward for e in self.episodes if e.reward is not None]

    @property
    def n_sampled(self) -> int:
        return sum(e.trajectory.n_sampled for e in self.episodes)


async def collect(context: JobContext, batch: Batch) -> Collected:
    """Roll a batch out and score it. Its environments are told of its end, however it comes."""
    envs: list[list[Environment]] = []
    try:
        for p in range(batch.n_groups):
            envs.append([])
            for _ in range(batch.n_samples):
                with contained("the environment's make()"):
                    envs[p].append(context.source.make(batch.first + p, batch.split))
        return await _collect(context, batch, envs)
    finally:
        for env in (env for members in envs for env in members):
            close_environment(env)


async def _collect(context: JobContext, batch: Batch, envs: list[list[Environment]]) -> Collected:
    groups: list[list[Episode]] = []
    for index, members in enumerate(envs, start=batch.first):
        group: list[Episode] = []
        for g, env in enumerate(members):
            said = await start_environment(env)
            with contained("the environment's start()"):
                prompt = read_tokens(
                    said, context.vocab_size, f"the prompt's tokens of problem {index}"
                )
            if g and context.declared.same_prompt:
                prompt = group[0].prompt
            group.append(Episode(index=index, sample=g, prompt=prompt))
        groups.append(group)
    for episode in (e for group in groups for e in group):
        context.room.check_prompt(context.spec.limits, episode.index, len(episode.prompt))
    asked = context.now()
    async with context.client.rollout(_worst(context, groups), evaluating=batch.evaluating):
        started = context.now()
        version = context.client.published if batch.version is None else batch.version
        async with asyncio.TaskGroup() as tasks:
            for p, (members, group) in enumerate(zip(envs, groups, strict=True)):
                tasks.create_task(_group(context, batch, version, p, members, group))
        ended = context.now()
    try:
        await context.scorer.score(groups, envs)
    finally:
        context.client.scored()
    done = context.now()
    return Collected(
        groups=groups, wait_s=started - asked, rollout_s=ended - started, reward_s=done - ended
    )


async def _group(
    context: JobContext,
    batch: Batch,
    version: int,
    p: int,
    envs: list[Environment],
    group: list[Episode],
) -> None:
    """All samples of one prompt, every turn drawn from ``version``."""
    spec, client = context.spec, context.client
    turns = spec.turns(context.declared.max_turns)
    together: asyncio.Future[tuple[Sampled, ...]] | None = None
    if turns == 1 and len({e.prompt for e in group}) == 1:
        params = _params(context, batch, envs[0], p, 0)
        together = asyncio.ensure_future(
            _draw_all(context, group[0].prompt, params, len(group), version)
        )

    async def one(episode: Episode, env: Environment) -> None:
        key = f"{episode.index}.{episode.sample}"

        async def draw(tokens: tuple[int, ...], turn: int) -> Sampled:
            if together is not None:
                return (await asyncio.shield(together))[episode.sample]
            params = _params(context, batch, env, p, turn)
            drawn = await client.sample(tokens, params, first_index=episode.sample, version=version)
            return drawn.samples[0]

        try:
            await play(
                episode,
                env,
                draw,
                max_turns=turns,
                max_context=context.max_context,
                max_tokens=spec.limits.max_tokens,
                vocab_size=context.vocab_size,
                deadline_s=spec.limits.rollout_deadline_s,
                now=context.now,
                waiting=lambda said: client.tool_wait(said, version),
                tool=lambda t0, t1: context.outside("tool", key, t0, t1),
            )
        finally:
            failure = close_environment(env)
            if failure is not None and episode.error is None:
                fail(episode, f"closing the environment: {told(failure)}")

    try:
        async with asyncio.TaskGroup() as tasks:
            for episode, env in zip(group, envs, strict=True):
                tasks.create_task(one(episode, env))
    finally:
        if together is not None and not together.done():
            together.cancel()


async def _draw_all(
    context: JobContext, prompt: tuple[int, ...], params: SamplingParams, n: int, version: int
) -> tuple[Sampled, ...]:
    return (await context.client.sample(prompt, params, n=n, version=version)).samples


def _params(
    context: JobContext, batch: Batch, env: Environment, p: int, turn: int
) -> SamplingParams:
    seed = context.seed(*batch.tag, batch.first + p, turn)
    make = context.spec.evaluation_params if batch.evaluating else context.spec.sampling_params
    with contained("the environment's stop"):
        return make(seed, stop=read_stops(env.stop))


def _worst(context: JobContext, groups: list[list[Episode]]) -> int:
    return context.room.worst_blocks(
        context.spec,
        context.declared,
        n_prompts=len(groups),
        group_size=len(groups[0]),
        prompt_tokens=max(len(e.prompt) for g in groups for e in g),
        block_size=context.block_size,
    )


def record(context: JobContext, episode: Episode, step: int, split: str) -> None:
    """Write an episode to ``samples.jsonl``."""
    decode = context.tokenizer.decode
    drawn, replies = episode.segments[::2], episode.segments[1::2]
    context.recorder.sample(
        SampleRecord(
            step=step,
            split=split,
            index=episode.index,
            group=episode.sample,
            prompt=decode(episode.prompt, skip_special=False),
            completion=decode(episode.completion, skip_special=False),
            reward=episode.reward,
            error=episode.error,
            why=episode.why,
            stop_reason=episode.stop_reason,
            n_turns=episode.n_turns,
            version=episode.version,
            prompt_tokens=len(episode.prompt),
            turn_tokens=tuple(len(segment.tokens) for segment in drawn),
            reply_tokens=tuple(len(segment.tokens) for segment in replies),
            waits_s=tuple(round(wait_s, 6) for wait_s in episode.waits_s),
        )
    )
