"""Plans: what a policy answers. Frozen values that the runtime or the simulator applies."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import overload

from plait.core.ids import OpId, RunId, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Why a run is not being served; shown to its owner as it stands."""

    run_id: RunId
    reason: str
    """A stable word: ``kv_budget``, ``barrier``, ``turn``, ``trainer_busy``, ``paused``."""
    detail: str = ""
    position: int = 0
    """Place in the queue, from 1; 0 where there is none."""


class LazyWaits(Sequence[Wait]):
    """Waits that are worded when somebody looks at them: with thousands of runs, wording them all
    takes far longer than the decision. They equal the tuple of themselves."""

    __slots__ = ()

    @abstractmethod
    def reasons(self) -> Iterator[tuple[RunId, str]]:
        """Run and reason of each, in order, without the words."""

    @abstractmethod
    def word(self, place: int) -> Wait:
        """The wait at ``place``, from 0."""

    @property
    def usual(self) -> str:
        """The reason of all that are not ``unusual``."""
        return ""

    def unusual(self) -> Iterable[tuple[RunId, str]]:
        """Run and reason of each that has another than the usual one, in any order."""
        return self.reasons()

    @overload
    def __getitem__(self, place: int) -> Wait: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Wait, ...]: ...
    def __getitem__(self, place: int | slice) -> Wait | tuple[Wait, ...]:
        at = range(len(self))[place]
        return self.word(at) if isinstance(at, int) else tuple(map(self.word, at))

    def __iter__(self) -> Iterator[Wait]:
        return map(self.word, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | LazyWaits):
            return NotImplemented
        return len(self) == len(other) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def reasons(waits: Sequence[Wait]) -> Iterable[tuple[RunId, str]]:
    """Run and reason of each wait, in order; what is not worded yet stays so."""
    if isinstance(waits, LazyWaits):
        return waits.reasons()
    return ((wait.run_id, wait.reason) for wait in waits)


def unusual(waits: Sequence[Wait]) -> tuple[str, dict[RunId, str]]:
    """The reason of most, and the reasons of the others: known before anybody is put in order."""
    if isinstance(waits, LazyWaits):
        return waits.usual, dict(waits.unusual())
    return "", {wait.run_id: wait.reason for wait in waits}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPlan:
    """Runs that may start their rollout now, and why the others wait."""

    admit: tuple[RunId, ...] = ()
    waits: tuple[Wait, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchPlan:
    """The operation to run next (``None``: leave the worker free), and why the others wait."""

    op_id: OpId | None = None
    along: tuple[OpId, ...] = ()
    """Gradients of other runs that go through the model in the same pass."""
    waits: Sequence[Wait] = ()


class Keep(StrEnum):
    """How soon cached keys and values that nobody holds are given up when blocks are wanted."""

    KEEP = "keep"
    """After all others."""
    LEAVE = "leave"
    """In their turn, least recently used first."""
    DROP = "drop"
    """Before all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyPlan:
    """What becomes of the cache of one sample that waits for a tool, and why."""

    keep: Keep
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HomePlan:
    """The training worker that does a run's next update, and why."""

    worker_id: WorkerId
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesPlan:
    """Samples that go on at another worker (none: all stay), and why."""

    op_ids: tuple[OpId, ...] = ()
    source: WorkerId | None = None
    target: WorkerId | None = None
    kv: bool = False
    """Their keys and values go along; else they are computed again."""
    reason: str = ""
