"""Episode: one sample's life: prompt, turns, reward or the error that ended it.

A bad rollout is data, not a crash: whatever an environment raises, and the rollout's deadline, end
up in ``error`` with the reward ``None``. Tokens go in and out as they are, never re-tokenised.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import inf

from plait.algos.datums import Segment, Trajectory
from plait.core.errors import (
    CapacityError,
    RequestError,
    RunEnded,
    StoreError,
    WorkerLost,
)
from plait.core.operations import Sampled, StopReason
from plait.core.text import told
from plait.envs.contain import contained
from plait.envs.protocol import Environment
from plait.envs.turns import read_turn

Draw = Callable[[tuple[int, ...], int], Awaitable[Sampled]]
"""``(tokens so far, turn) -> what the policy says next``."""

FATAL = (RunEnded, RequestError, CapacityError, WorkerLost, StoreError)
"""What no sample can be blamed for: these end the step, everything else ends the sample."""


@dataclass(slots=True, kw_only=True)
class Episode:
    """One sample of a group."""

    index: int
    """The problem."""
    sample: int
    prompt: tuple[int, ...]
    segments: list[Segment] = field(default_factory=list)
    reward: float | None = None
    error: str | None = None
    why: str = ""
    """The environment's own words about the reward."""
    stop_reason: str = ""
    n_turns: int = 0
    version: int | None = None
    waits_s: list[float] = field(default_factory=list)
    """For the environment, after each turn."""
    left_s: float = inf
    """What is left of the rollout's deadline for its rewards."""

    @property
    def trajectory(self) -> Trajectory:
        return Trajectory(prompt=self.prompt, segments=tuple(self.segments))

    @property
    def tokens(self) -> tuple[int, ...]:
        """Everything said so far, the prompt included."""
        return self.prompt + tuple(t for s in self.segments for t in s.tokens)

    @property
    def completion(self) -> tuple[int, ...]:
        """Everything after the prompt."""
        return tuple(t for s in self.segments for t in s.tokens)


async def play(
    episode: Episode,
    env: Environment,
    draw: Draw,
    *,
    max_turns: int,
    max_context: int,
    max_tokens: int,
    vocab_size: int,
    deadline_s: float,
    now: Callable[[], float],
    waiting: Callable[[tuple[int, ...]], AbstractContextManager[None]],
    tool: Callable[[float, float], None],
) -> None:
    """Play an episode to its end within one deadline, and note what is left of that;
    ``waiting(tokens)`` is entered for each wait that another turn may follow, ``tool(t0, t1)``
    reports every one."""
    started = now()
    try:
        async with asyncio.timeout(deadline_s):
            await _turns(
                episode,
                env,
                draw,
                max_turns=max_turns,
                max_context=max_context,
                max_tokens=max_tokens,
                vocab_size=vocab_size,
                now=now,
                waiting=waiting,
                tool=tool,
            )
    except TimeoutError:
        out_of_time(episode, deadline_s)
    except FATAL:
        raise
    except Exception as failure:
        # A user's environment may raise anything: it is this sample's error and nothing else's.
        fail(episode, told(failure))
    finally:
        episode.left_s = deadline_s - (now() - started)


def out_of_time(episode: Episode, deadline_s: float) -> None:
    """The episode has used up its deadline: an error, whatever it had earned."""
    fail(episode, f"rollout took longer than {deadline_s:g} s")


async def _turns(
    episode: Episode,
    env: Environment,
    draw: Draw,
    *,
    max_turns: int,
    max_context: int,
    max_tokens: int,
    vocab_size: int,
    now: Callable[[], float],
    waiting: Callable[[tuple[int, ...]], AbstractContextManager[None]],
    tool: Callable[[float, float], None],
) -> None:
    for turn in range(max_turns):
        tokens = episode.tokens
        if len(tokens) + max_tokens > max_context:
            fail(episode, f"context of {max_context} tokens is full after {turn} turns")
            return
        sampled = await draw(tokens, turn)
        episode.segments.append(Segment(tokens=sampled.tokens, logprobs=sampled.logprobs))
        episode.n_turns, episode.version = turn + 1, sampled.version
        episode.stop_reason = sampled.stop_reason.value
        if sampled.stop_reason is StopReason.ABORT:
            fail(episode, "aborted")
            return
        t0 = now()
        wait = waiting(episode.tokens) if turn + 1 < max_turns else nullcontext()
        with wait, contained("the environment's step()"):
            answer = read_turn(await env.step(sampled.tokens), vocab_size)
        t1 = now()
        episode.waits_s.append(t1 - t0)
        tool(t0, t1)
        episode.why = answer.info.get("why", episode.why)
        if answer.done:
            episode.reward = answer.reward
            return
        episode.segments.append(Segment(tokens=answer.tokens))
    episode.why = f"stopped after {max_turns} turns"


def fail(episode: Episode, error: str) -> None:
    """The episode's end is an error, whatever it had earned."""
    episode.error, episode.reward = error, None
