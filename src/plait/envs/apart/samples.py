"""Samples: what an environment's process has under way: its samples, and a task for each request.

A request that is cancelled answers too, when it has stopped: so the parent knows that the loop is
not blocked. ``close`` is not answered.
"""

import asyncio
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plait.core.errors import EnvironmentFailure
from plait.core.text import told
from plait.envs.apart.wording import columns_of, cut, failure, said, stops_of
from plait.envs.closing import close_environment
from plait.envs.contain import contained
from plait.envs.protocol import Environment, TaskSource
from plait.envs.turns import plain_tokens, plain_turn
from plait.rewards.outcome import MAX_ERROR_CHARS


@dataclass(slots=True)
class _Sample:
    env: Environment
    columns: bytes = b""
    """As they were sent last."""


class Samples:
    """The samples of one source."""

    def __init__(self, source: TaskSource, answer: Callable[[int, bytes], None]) -> None:
        self._source, self._answer = source, answer
        self._samples: dict[int, _Sample] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def take(self, number: int, request: dict[str, Any]) -> None:
        """Begin what is asked for."""
        kind = request["kind"]
        if kind == "cancel":
            if (task := self._tasks.get(request["number"])) is not None:
                # Once it has begun: a task that is cancelled before that would not answer.
                asyncio.get_running_loop().call_soon(task.cancel)
        elif kind == "close":
            self._close(request["sample"])
        else:
            task = asyncio.create_task(self._serve(number, request), name=f"{kind}-{number}")
            self._tasks[number] = task

    async def _serve(self, number: int, request: dict[str, Any]) -> None:
        try:
            body = await self._done(request)
        except asyncio.CancelledError:
            body = failure(EnvironmentFailure("it was given up"))
        except Exception as error:  # the recorder: what a user's code raised is its sample's error
            if not isinstance(error, EnvironmentFailure):
                traceback.print_exception(error)
            body = failure(error)
        self._tasks.pop(number, None)
        self._answer(number, body)

    async def _done(self, request: dict[str, Any]) -> bytes:
        kind = request["kind"]
        if kind == "aclose":
            with contained("its aclose()"):
                await self._source.aclose()
            return said({})
        number = request["sample"]
        if kind == "start":
            with contained("the environment's make()"):
                env = self._source.make(request["index"], request["split"])
            sample = self._samples[number] = _Sample(env)
            try:
                with contained("the environment's start()"):
                    tokens = plain_tokens(await env.start(), "the prompt's tokens")
                    return self._said(sample, {"tokens": tokens})
            except BaseException:
                self._close(number)
                raise
        if (found := self._samples.get(number)) is None:
            raise EnvironmentFailure("the environment was asked before it was started")
        with contained("the environment's step()"):
            turn = plain_turn(await found.env.step(tuple(request["tokens"])))
            why = turn.info.get("why")
            about = {
                "tokens": turn.tokens,
                "reward": turn.reward,
                "done": turn.done,
                "why": None if why is None else cut(why),
            }
            return self._said(found, about)

    def _said(self, sample: _Sample, about: dict[str, Any]) -> bytes:
        """What it said, with its stops, and its columns if they have changed."""
        about = {**about, "stop": stops_of(sample.env)}
        try:
            with contained("the environment's columns()"):
                columns = columns_of(sample.env)
        except Exception as error:  # asked for when the rewards are; told then
            return said({**about, "no_columns": told(error)[:MAX_ERROR_CHARS] or "none"})
        if columns == sample.columns:
            return said(about)
        sample.columns = columns
        return said(about)[:-1] + b', "columns": ' + columns + b"}"

    def _close(self, number: int) -> None:
        if (sample := self._samples.pop(number, None)) is None:
            return
        if (error := close_environment(sample.env)) is not None:
            traceback.print_exception(error)
