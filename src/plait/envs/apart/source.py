"""Source: a job's own environment, whose code runs in a process of the job's own.

What the head has of it is a ``TaskSource`` like any other. Invariants: the process runs nothing of
another job's; a process that has ended, or was ended because it hung, fails the samples that it had
under way and no other: the next sample starts it again, with the same seed, so that one index and
split stay one problem. One that ends ``MAX_DEATHS`` times without having answered a turn between is
not started again: every later ``start`` says why, which ends the job.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from plait.cluster.child import Child, ChildDied
from plait.core.errors import ConfigError, EnvironmentFailure
from plait.envs.apart.channel import Channel
from plait.envs.apart.environment import ApartEnv
from plait.envs.apart.place import Place
from plait.envs.apart.replies import Done, Made, read_reply

MAX_DEATHS = 5
"""One bad sample in a batch ends one process; five batches that all do are no accident."""
MAKE_S = 300.0
"""Starting Python, importing the user's modules and making the source, an index maybe."""
VARIABLES = {"PYTHONHASHSEED": "0"}
"""One order of sets in every process: what a user draws from one is the same after a restart."""


class ApartSource:
    """``module:attribute`` of a job's own files; to be opened before anything else is asked."""

    def __init__(self, target: str, config: Mapping[str, Any], *, seed: int, place: Place) -> None:
        self.name, self.same_prompt, self.scores = target, True, True
        self.max_turns, self.max_observation_tokens = 1, 0
        self._made: Made | None = None
        self._place = place
        self._setup = {
            "kind": "setup",
            "target": target,
            "config": dict(config),
            "seed": seed,
            "sys_path": list(place.sys_path),
            "model_dir": str(place.model_dir.resolve()),
            "memory_bytes": place.memory_bytes,
        }
        self._channel: Channel | None = None
        self._starting = asyncio.Lock()
        self._closed = False
        self._n_samples = 0
        self.n_started = 0
        """Processes started so far."""
        self._deaths, self._last = 0, ""
        """How often in a row, without a turn between, and why the last time."""

    async def open(self) -> None:
        """Start the process and read what the source says of itself; ConfigError if it cannot be
        made."""
        try:
            await self.channel()
        except EnvironmentFailure as error:
            target, why = self._setup["target"], str(error)
            named = why.startswith(f"environment {target}")
            raise ConfigError(why if named else f"environment {target}: {why}") from error

    def make(self, index: int, split: str) -> ApartEnv:
        """A fresh environment; it exists in the process from its ``start`` on."""
        self._n_samples += 1
        return ApartEnv(self, self._n_samples, index, split)

    async def channel(self) -> Channel:
        """The process, started anew if it has ended."""
        async with self._starting:
            if self._closed:
                raise EnvironmentFailure("the environment is closed")
            if (channel := self._channel) is not None:
                if channel.open:
                    return channel
                await channel.aclose("it has ended")
                self._channel, self._last = None, channel.reason
                self._deaths += 1
            if self._deaths >= MAX_DEATHS:
                raise EnvironmentFailure(
                    f"its process ended {self._deaths} times in a row, the last time because: "
                    f"{self._last} (environment.log may say more): mend it and submit the job anew"
                )
            self._channel = await self._started()
            return self._channel

    def answered(self) -> None:
        """A turn was answered: the process works."""
        self._deaths = 0

    async def aclose(self) -> None:
        """Let the source end what it owns, then end its process."""
        self._closed = True
        channel, self._channel = self._channel, None
        if channel is None:
            return
        try:
            if channel.open:
                read_reply(Done, await channel.ask({"kind": "aclose"}))
        except ChildDied as error:
            raise EnvironmentFailure(f"its process ended ({error})") from error
        finally:
            await channel.aclose("it was closed")

    async def _started(self) -> Channel:
        place = self._place
        self.n_started += 1
        try:
            child = await Child.start(
                "plait.envs.apart.worker",
                reads=place.reads,
                variables=VARIABLES,
                log=place.log,
                sandboxed=place.sandboxed,
            )
        except OSError as error:
            raise EnvironmentFailure(f"its process could not start: {error}") from error
        channel = Channel(child)
        try:
            async with asyncio.timeout(MAKE_S):
                made = read_reply(Made, await channel.ask(self._setup))
            if self._made not in (None, made):
                raise EnvironmentFailure(
                    f"made again it says other things of itself ({made} instead of {self._made}): "
                    "let them depend on its configuration and seed alone"
                )
        except BaseException as error:
            await channel.aclose("it could not be made")
            if isinstance(error, TimeoutError):
                raise EnvironmentFailure(
                    f"it was not made within {MAKE_S:g} s: do less when it is imported and made"
                ) from None
            if isinstance(error, ChildDied):
                raise EnvironmentFailure(f"its process ended as it was made ({error})") from error
            raise
        self._made = made
        self.name, self.same_prompt, self.scores = made.name, made.same_prompt, made.scores
        self.max_turns = made.max_turns
        self.max_observation_tokens = made.max_observation_tokens
        return channel
