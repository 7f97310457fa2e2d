"""Environment: one sample of an environment whose code runs in a process of its own."""

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from plait.cluster.child import ChildDied
from plait.core.errors import EnvironmentFailure
from plait.envs.apart.channel import Channel
from plait.envs.apart.replies import Said, Stepped, read_reply
from plait.envs.protocol import Turn

if TYPE_CHECKING:
    from plait.envs.apart.source import ApartSource

S = TypeVar("S", bound=Said)


class ApartEnv:
    """What the head has of it: the numbers that go to and fro, and what it said last.

    Stops and columns come along with every answer, for they are asked for without waiting; so
    ``columns()`` of the user's environment is called after every turn, not only at its end.
    """

    def __init__(self, source: "ApartSource", sample: int, index: int, split: str) -> None:
        self._source = source
        self._about = {"sample": sample, "index": index, "split": split}
        self._channel: Channel | None = None
        self._columns: Mapping[str, Any] = {}
        self._no_columns = "the environment was asked before it was started"
        self._closed = False
        self.stop: tuple[str, ...] = ()

    async def start(self) -> tuple[int, ...]:
        """The prompt's tokens. A process that ends meanwhile is started again."""
        while True:
            self._channel = await self._source.channel()
            try:
                body = await self._channel.ask({"kind": "start", **self._about})
            except ChildDied:
                continue
            return tuple(self._heard(read_reply(Said, body)).tokens)

    async def step(self, tokens: tuple[int, ...]) -> Turn:
        """What the user's environment answers."""
        if self._channel is None:
            raise EnvironmentFailure("the environment was asked before it was started")
        request = {"kind": "step", "sample": self._about["sample"], "tokens": tokens}
        try:
            body = await self._channel.ask(request)
        except ChildDied as error:
            raise EnvironmentFailure(f"the environment's process ended ({error})") from error
        said = self._heard(read_reply(Stepped, body))
        self._source.answered()
        info = {} if said.why is None else {"why": said.why}
        return Turn(tokens=tuple(said.tokens), reward=said.reward, done=said.done, info=info)

    def columns(self) -> Mapping[str, Any]:
        """The columns after its last turn."""
        if self._no_columns:
            raise EnvironmentFailure(self._no_columns)
        return self._columns

    def close(self) -> None:
        """Tell the process that the sample has ended; what goes wrong there is in its log."""
        if self._channel is None or self._closed:
            return
        self._closed = True
        with suppress(ChildDied):
            self._channel.tell({"kind": "close", "sample": self._about["sample"]})

    def _heard(self, said: S) -> S:
        self.stop = tuple(said.stop)
        if said.columns is not None:
            self._columns = said.columns
        if said.columns is not None or said.no_columns:
            self._no_columns = said.no_columns
        return said
