"""Score: rewards of a batch: the environment's own, plus the job's reward functions and judges.

Within a sample the parts add up by weight; a part that does not apply (``None``) is left out, a
part that failed makes the sample an error. An error is never a reward of 0.

Rewards have what the sample's own generation and tools have left of its rollout's deadline, the
wait for a free grader included; time in which it only waited for its batch is not charged.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from plait.core.text import told
from plait.envs.contain import contained
from plait.envs.protocol import Environment
from plait.envs.turns import read_columns
from plait.jobs.episode import Episode, fail, out_of_time
from plait.jobs.sections import RewardSection
from plait.jobs.spec import JobSpec
from plait.models.tokenizer import Tokenizer
from plait.rewards.judge import Judge
from plait.rewards.names import JUDGE
from plait.rewards.outcome import RewardOutcome, combine
from plait.rewards.pool import RewardPool

Call = Callable[
    [list[str], list[str], dict[str, list[Any]]], Coroutine[Any, Any, list[RewardOutcome]]
]
Outside = Callable[[str, str, float, float], None]


class Scorer:
    """All rewards of one job."""

    def __init__(
        self,
        pool: RewardPool,
        spec: JobSpec,
        tokenizer: Tokenizer,
        *,
        outside: Outside,
        now: Callable[[], float],
    ) -> None:
        self._spec, self._tokenizer = spec, tokenizer
        self._pool, self._outside, self._now = pool, outside, now
        self._path = (spec.base_dir,) if spec.base_dir else ()
        self._judges: list[Judge] = []
        self._parts = [(r.weight, self._call(r)) for r in spec.rewards]

    async def check(self) -> None:
        """Import every function now; ConfigError if one cannot be."""
        for reward in self._spec.rewards:
            name = reward.function or reward.name or ""
            if name != JUDGE:
                await self._pool.check(name, sys_path=self._path, owner=self._spec.name)

    async def aclose(self) -> None:
        """Close the judges' connections and end the job's own graders."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._pool.release, self._spec.name)
            for judge in self._judges:
                stack.push_async_callback(judge.aclose)

    async def score(
        self, groups: Sequence[Sequence[Episode]], envs: Sequence[Sequence[Environment]]
    ) -> None:
        """Set each episode's ``reward`` or ``error``."""
        if not self._parts:
            return
        async with asyncio.TaskGroup() as tasks:
            for group, members in zip(groups, envs, strict=True):
                tasks.create_task(self._group(group, members))

    async def _group(self, group: Sequence[Episode], envs: Sequence[Environment]) -> None:
        scored = _with_columns(group, envs)
        if not scored:
            return
        prompts = [self._tokenizer.decode(e.prompt) for e, _ in scored]
        completions = [self._tokenizer.decode(e.completion) for e, _ in scored]
        columns = {key: [c[key] for _, c in scored] for key in scored[0][1]}
        started = self._now()
        results: list[list[RewardOutcome]] | None = None
        try:
            async with (
                asyncio.timeout(max(e.left_s for e, _ in scored)),
                asyncio.TaskGroup() as tasks,
            ):
                calls = [
                    tasks.create_task(call(prompts, completions, columns))
                    for _, call in self._parts
                ]
            results = [call.result() for call in calls]
        except TimeoutError:
            pass  # every sample has used up its deadline
        ended = self._now()
        self._outside("reward", str(group[0].index), started, ended)
        for i, (episode, _) in enumerate(scored):
            if results is None or ended - started > episode.left_s:
                out_of_time(episode, self._spec.limits.rollout_deadline_s)
                continue
            parts = [
                (weight, outcomes[i])
                for (weight, _), outcomes in zip(self._parts, results, strict=True)
            ]
            if episode.reward is not None:
                parts.append((1.0, RewardOutcome(value=episode.reward)))
            total = combine(parts)
            episode.reward, episode.error = total.value, total.error

    def _call(self, reward: RewardSection) -> Call:
        if reward.name == JUDGE:
            judge = Judge(deadline_s=reward.deadline_s, **reward.config)
            self._judges.append(judge)
            return judge.score
        name = reward.function or reward.name or ""

        async def call(
            prompts: list[str], completions: list[str], columns: dict[str, list[Any]]
        ) -> list[RewardOutcome]:
            return await self._pool.score(
                name,
                prompts,
                completions,
                columns,
                reward.deadline_s,
                sys_path=self._path,
                owner=self._spec.name,
            )

        return call


def _with_columns(
    group: Sequence[Episode], envs: Sequence[Environment]
) -> list[tuple[Episode, Mapping[str, Any]]]:
    """The episodes that can be scored, each with the same columns; the others become errors."""
    found: list[tuple[Episode, Mapping[str, Any]]] = []
    for episode, env in zip(group, envs, strict=True):
        if episode.error is not None:
            continue
        try:
            with contained("the environment's columns()"):
                columns = read_columns(env.columns())
        except Exception as error:  # a user's environment: this sample's error and nobody else's
            fail(episode, told(error))
            continue
        if found and columns.keys() != found[0][1].keys():
            names = " and ".join(", ".join(c) or "none" for c in (found[0][1], columns))
            fail(episode, f"the environment gave its samples different columns: {names}")
            continue
        found.append((episode, columns))
    return found
