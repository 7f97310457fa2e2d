"""Training: what a worker has been asked to train, carried out slice by slice, in the order asked.

One operation runs at a time, or gradients of several runs in one pass. Where such a pass fails as a
whole, each is tried by itself, which shows whose fault it is. Left to others: when a slice is
carried out, what is told of it (``worker``).
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass

from plait.core.errors import EngineError, PlaitError
from plait.core.ids import OpId, RunId
from plait.core.operations import ForwardBackward, Result
from plait.engines.protocol import TrainEngine, TrainStep
from plait.runtime import messages as m
from plait.runtime.carry import carry_out

KINDS = {"ForwardBackward": "train", "Forward": "forward", "OptimStep": "optim"}
"""Of spans, by operation; of any other it is ``load``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An operation that has ended. ``part``: what of the time since it began is its."""

    op_id: OpId
    outcome: Result | Exception
    since_s: float = 0.0
    part: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What one slice did. ``broken``: it was cut short by an error, and is in no account."""

    kind: str
    tokens_by_run: dict[RunId, int]
    ended: tuple[Ended, ...] = ()
    broken: bool = False


class Training:
    """A training engine and what is asked of it."""

    def __init__(self, engine: TrainEngine | None, *, log: Callable[[Exception], None]) -> None:
        self.engine, self._log = engine, log
        self._queue: list[tuple[m.Train, ...]] = []
        """What is done one after the other, and in each what is done together."""
        self._slices: Generator[TrainStep, None, tuple[Result | PlaitError, ...]] | None = None
        self._began_s = 0.0

    def add(self, *tasks: m.Train) -> None:
        """Last; several are done together."""
        self._queue.append(tasks)

    def has_work(self) -> bool:
        return bool(self._queue)

    @property
    def what(self) -> str:
        """What the next slice is of."""
        return ", ".join(f"{type(t.op).__name__} of {t.op.run_id}" for t in self._queue[0])

    def slice(self, now: float) -> Slice:
        """Carry out one micro-batch of what is first."""
        tasks = self._queue[0]
        if self._slices is None:
            self._slices, self._began_s = self._carry_out(tasks), now
        kind = KINDS.get(type(tasks[0].op).__name__, "load")
        tokens = dict.fromkeys((task.op.run_id for task in tasks), 0)
        ended: tuple[Ended, ...] = ()
        try:
            tokens.update(next(self._slices).tokens_by_run)
        except StopIteration as end:
            self._end()
            ended = tuple(
                Ended(op_id=task.op.op_id, outcome=outcome, since_s=self._began_s, part=part)
                for task, outcome, part in zip(tasks, end.value, _parts(tasks), strict=True)
            )
        except Exception as error:
            if len(tasks) > 1:
                self._log(error)
                self._queue[1:1] = [(task,) for task in tasks]
            else:
                ended = (Ended(op_id=tasks[0].op.op_id, outcome=error),)
            self._end()
            return Slice(kind=kind, tokens_by_run=tokens, ended=ended, broken=True)
        return Slice(kind=kind, tokens_by_run=tokens, ended=ended)

    def _end(self) -> None:
        self._queue.pop(0)
        self._slices = None

    def _carry_out(
        self, tasks: tuple[m.Train, ...]
    ) -> Generator[TrainStep, None, tuple[Result | PlaitError, ...]]:
        if self.engine is None:
            raise EngineError("this worker does not train")
        if len(tasks) > 1:
            return (yield from self.engine.forward_backward_many(_gradients(tasks)))
        return ((yield from carry_out(self.engine, tasks[0])),)


def _parts(tasks: tuple[m.Train, ...]) -> list[float]:
    """What of the time that was spent on ``tasks`` together is each one's, by its tokens."""
    if len(tasks) == 1:
        return [1.0]
    tokens = [sum(len(d.input_tokens) for d in op.data) for op in _gradients(tasks)]
    return [n / sum(tokens) for n in tokens]


def _gradients(tasks: tuple[m.Train, ...]) -> list[ForwardBackward]:
    return [task.op for task in tasks if isinstance(task.op, ForwardBackward)]
