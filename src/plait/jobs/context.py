"""Context: what a controller is given. One job, its run, its environment and where it writes."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from plait.core.runs import Stage
from plait.envs.declared import Declared
from plait.envs.protocol import TaskSource
from plait.jobs.account import Account
from plait.jobs.room import Room
from plait.jobs.score import Scorer
from plait.jobs.spec import JobSpec
from plait.models.tokenizer import Tokenizer
from plait.obs.recorder import JobRecorder
from plait.runtime.client import RunClient


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """Everything one controller needs."""

    spec: JobSpec
    client: RunClient
    source: TaskSource
    declared: Declared
    """What the source says of itself."""
    tokenizer: Tokenizer
    scorer: Scorer
    recorder: JobRecorder
    outside: Callable[[str, str, float, float], None]
    """``(what, key, t0, t1)``: a tool call or a grader's run, which no worker shows."""
    account: Account
    """What the job's files say of the step at which it is taken up."""
    room: Room
    block_size: int
    vocab_size: int
    deterministic: bool = False
    """Which version a batch is drawn from depends on its number alone."""

    def now(self) -> float:
        """Seconds on the clock of all of this launch's processes."""
        return self.client.now()

    @property
    def max_context(self) -> int:
        """Tokens that one sample may have, its prompt included."""
        return self.room.tokens

    def seed(self, *parts: object) -> int:
        """A seed that ``(job seed, parts)`` determine alone."""
        text = repr((self.spec.seed, *parts)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


class Controller(Protocol):
    """A job's control flow; ``controller: module:Class`` in a job file names another one."""

    def __init__(self, context: JobContext) -> None: ...

    async def run(self) -> tuple[Stage, str]:
        """Drive the run to its end; how it ended and why. Raises ``PlaitError`` if it failed."""
        ...
