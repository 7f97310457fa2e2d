"""Pool: reward functions in a few processes that can be killed, under a deadline per call.

Invariants:
- Every sample gets an outcome; what a function raises, returns wrongly or hangs on is an error of
  the samples of that call, never a reward of 0 and never an exception of ``score``.
- A call that runs past its deadline has its process killed and replaced, and so has a call whose
  caller was cancelled: the state of such a process is unknown.
- A call's deadline runs from when a process starts on it, modules imported; waiting for a free
  process has a bound of its own.
- One owner's hung graders never hold every process (with more than one).
- A process that has run a user's function serves one owner and one import path for ever: what the
  function leaves behind there (modules, globals, forked children) is nobody else's. Processes of
  plait's own functions are shared.

Left to others: which rewards a job has and their weights (``jobs``), judges behind a URL
(``judge``).
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from plait.cluster.child import ChildDied
from plait.core.errors import ConfigError, RewardError
from plait.rewards.names import RewardName, find_reward
from plait.rewards.outcome import RewardOutcome, failed
from plait.rewards.process import LOAD_S, GraderProcess

MIN_PROCESSES = 2
"""Two, so that one owner's hung grader leaves a process for the others."""
MAX_PROCESSES = 8
"""Each may hold sympy or more; graders are light, so more would only cost memory."""
MAX_IDLE = 32
"""Idle processes kept for their next call: one for each job of a large launch, for starting Python
and importing a grader takes longer than most calls."""
QUEUE_FACTOR = 10.0
"""A call may wait this many deadlines for a free process before it is given up."""
MEMORY_BYTES = 8 * 2**30
"""Private memory of one process: a grader that evaluates ``9**9**9`` must not take the machine."""

Outcomes = list[RewardOutcome]
Binding = tuple[str, tuple[str, ...]]
"""Whose process it is, and the import path it was started with."""
OURS: Binding = ("", ())
"""For functions of plait's own."""


class RewardPool:
    """At most ``n`` grader processes at work, started when first needed; use as ``async with``."""

    def __init__(
        self,
        n: int | None = None,
        *,
        memory_bytes: int = MEMORY_BYTES,
        log: Path | None = None,
        sandboxed: bool = False,
    ) -> None:
        """``log``: the file that gets what graders print; none: it is dropped. ``sandboxed``:
        users' functions are strangers' and run in a ``sandbox``."""
        cores = os.cpu_count() or 1
        self.n = n or min(max(cores, MIN_PROCESSES), MAX_PROCESSES)
        self._memory_bytes = memory_bytes
        self._log, self._sandboxed = log, sandboxed
        self._idle: list[tuple[Binding, GraderProcess]] = []
        self._busy: dict[str, int] = {}
        self._n_busy = 0
        self._free = asyncio.Condition()
        self._closed = False
        self.n_started = 0
        """Processes started so far."""
        self.n_killed = 0
        """Processes killed because a call hung, crashed or was abandoned."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End all processes; calls still running must have been awaited or cancelled."""
        self._closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(process.kill() for _, process in idle))

    async def release(self, owner: str) -> None:
        """End the idle processes that are ``owner``'s: it will not ask again."""
        leaving = [process for (whose, _), process in self._idle if whose == owner]
        self._idle = [(b, process) for b, process in self._idle if b[0] != owner]
        await asyncio.gather(*(process.kill() for process in leaving))

    async def check(self, name: str, *, sys_path: Sequence[str] = (), owner: str = "") -> None:
        """Import the reward now, in a process; ConfigError with the reason if it cannot be."""
        reward = find_reward(name)
        where = tuple(sys_path)
        owner = owner or os.pathsep.join(where)
        try:
            async with self._process(
                _binding(reward.target, owner, where), owner, LOAD_S
            ) as process:
                await process.load(reward.target)
        except (RewardError, ChildDied, TimeoutError) as error:
            raise ConfigError(f"reward {name} cannot be loaded: {error}") from error

    async def score(
        self,
        name: str,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        columns: Mapping[str, Sequence[Any]],
        deadline_s: float,
        *,
        sys_path: Sequence[str] = (),
        owner: str = "",
    ) -> Outcomes:
        """One outcome per completion; ConfigError only for a name that cannot be one.

        ``columns`` hold one value per completion. ``owner`` (a job) is whose the processes of a
        user's function are, and between whom all are shared fairly; default: the import path.
        """
        reward = find_reward(name)
        n = len(completions)
        if len(prompts) != n or any(len(values) != n for values in columns.values()):
            raise RewardError(f"prompts and columns of reward {name} must have {n} values each")
        where = tuple(sys_path)
        owner = owner or os.pathsep.join(where)
        if not reward.one_by_one:
            return await self._score(
                reward, prompts, completions, columns, deadline_s, where, owner
            )
        calls = [
            self._score(
                reward,
                prompts[i : i + 1],
                completions[i : i + 1],
                {key: values[i : i + 1] for key, values in columns.items()},
                deadline_s,
                where,
                owner,
            )
            for i in range(n)
        ]
        return [one for part in await asyncio.gather(*calls) for one in part]

    async def call(
        self,
        target: str,
        args: Sequence[Any],
        deadline_s: float,
        *,
        sys_path: Sequence[str] = (),
        owner: str = "",
    ) -> Any:
        """The JSON value that ``module:function`` returns for ``args``; RewardError if it fails."""
        request = {"kind": "call", "target": target, "args": tuple(args)}
        return await self._ask(request, target, deadline_s, tuple(sys_path), owner)

    async def _score(
        self,
        reward: RewardName,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        columns: Mapping[str, Sequence[Any]],
        deadline_s: float,
        sys_path: tuple[str, ...],
        owner: str,
    ) -> Outcomes:
        request = {
            "kind": "score",
            "name": reward.name,
            "target": reward.target,
            "prompts": list(prompts),
            "completions": list(completions),
            "columns": {key: list(values) for key, values in columns.items()},
        }
        try:
            pairs = await self._ask(request, reward.name, deadline_s, sys_path, owner)
        except RewardError as error:
            return failed(str(error), len(completions))
        return [RewardOutcome(value=value, error=error) for value, error in pairs]

    async def _ask(
        self,
        request: dict[str, Any],
        name: str,
        deadline_s: float,
        sys_path: tuple[str, ...],
        owner: str,
    ) -> Any:
        binding = _binding(request["target"], owner, sys_path)
        async with self._process(binding, owner, QUEUE_FACTOR * deadline_s) as process:
            try:
                await process.load(request["target"])
            except TimeoutError:
                await process.kill()
                raise RewardError(f"reward {name} was not imported within {LOAD_S:g} s") from None
            except ChildDied as error:
                await process.kill()
                raise RewardError(f"reward {name} cannot be loaded: {error}") from error
            except RewardError as error:
                raise RewardError(f"reward {name} cannot be loaded: {error}") from error
            try:
                return await process.ask(request, deadline_s)
            except TimeoutError:
                await process.kill()
                raise RewardError(
                    f"reward {name} ran longer than {deadline_s:g} s and was killed: "
                    "make it faster or raise its deadline_s"
                ) from None
            except ChildDied as error:
                await process.kill()  # it may live on after an answer that nobody can trust
                raise RewardError(f"reward {name} ended its process ({error})") from error
            except RewardError as error:
                raise RewardError(f"reward {name} raised {error}") from error

    @contextlib.asynccontextmanager
    async def _process(
        self, binding: Binding, owner: str, wait_s: float
    ) -> AsyncIterator[GraderProcess]:
        """A process for one request; it goes back to the idle ones only if the request ended."""
        await self._acquire(owner, wait_s)
        process: GraderProcess | None = None
        clean = False
        try:
            process = await self._take(binding)
            try:
                yield process
            except RewardError:
                clean = process.alive
                raise
            clean = process.alive
        finally:
            try:
                if process is not None and clean and not self._closed:
                    self._idle.append((binding, process))
                elif process is not None:
                    self.n_killed += 0 if self._closed else 1
                    await process.kill()
            finally:
                await asyncio.shield(self._release(owner))

    async def _acquire(self, owner: str, wait_s: float) -> None:
        limit = max(1, self.n - 1)

        def may_start() -> bool:
            return self._n_busy < self.n and self._busy.get(owner, 0) < limit

        try:
            async with asyncio.timeout(wait_s), self._free:
                await self._free.wait_for(may_start)
                self._n_busy += 1
                self._busy[owner] = self._busy.get(owner, 0) + 1
        except TimeoutError:
            raise RewardError(
                f"no grader process was free within {wait_s:g} s: "
                "some reward hangs, or there are too many graders for this machine"
            ) from None

    async def _release(self, owner: str) -> None:
        async with self._free:
            self._n_busy -= 1
            self._busy[owner] -= 1
            self._free.notify_all()

    async def _take(self, binding: Binding) -> GraderProcess:
        """An idle process of this binding, else a new one, if need be in the place of another's."""
        if self._closed:
            raise RewardError("the pool of graders is closed")
        for i, (bound, process) in enumerate(self._idle):
            if bound == binding:
                del self._idle[i]
                if process.alive:
                    return process
                await process.kill()
                break
        while self._idle and self._n_busy + len(self._idle) > max(self.n, MAX_IDLE):
            await self._idle.pop(0)[1].kill()
        self.n_started += 1
        try:
            return await GraderProcess.start(
                binding[1],
                memory_bytes=self._memory_bytes,
                log=self._log,
                sandboxed=self._sandboxed and binding != OURS,
            )
        except (ChildDied, TimeoutError, OSError) as error:
            raise RewardError(f"a grader process could not start: {error}") from error


def _binding(target: str, owner: str, sys_path: tuple[str, ...]) -> Binding:
    return OURS if target.startswith("plait.") else (owner, sys_path)
