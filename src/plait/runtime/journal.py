"""Journal: what the head does, written by the launch's recorder.

Turns a worker's spans into rows with their FLOPs: 2 per matrix weight and token forward, and as
much again for the backward pass of a frozen model under LoRA.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from plait.core.errors import StoreError
from plait.core.ids import RunId, WorkerId
from plait.obs.recorder import Recorder
from plait.obs.records import Span
from plait.policies.protocol import State
from plait.runtime import messages as m


class Journal(Protocol):
    """Where the head writes what happened."""

    def span(self, worker: WorkerId, span: m.Span) -> None: ...

    def event(self, run_id: RunId | None, kind: str, **detail: object) -> None: ...

    def keeps(self, kind: str) -> bool:
        """Events of that kind are written: where not, nobody need find words for them."""
        ...

    def decision(self, kind: str, view: object, state: State, plan: object) -> None: ...


FLOPS_PER_WEIGHT = {"rollout": 2.0, "forward": 2.0, "train": 4.0}
"""Per token. Only kinds that multiply matrices count."""


class LaunchJournal:
    """A ``Journal`` over a ``Recorder``.

    Never raises into the loop that it observes: the first write that the disk refuses is told to
    ``on_broken``, which ends the launch in order.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        policy: str,
        n_params: int,
        now: Callable[[], float],
        on_broken: Callable[[StoreError], None],
    ) -> None:
        self.recorder = recorder
        self.broken: StoreError | None = None
        self._closed = False
        self._policy, self._n_params, self._now = policy, n_params, now
        self._on_broken = on_broken

    def span(self, worker: WorkerId, span: m.Span) -> None:
        """A stretch of a worker's time."""
        runs = list(span.tokens_by_run)
        row = Span(
            worker=worker,
            kind=span.kind,
            t0=span.t0,
            t1=span.t1,
            run=runs[0] if len(runs) == 1 else None,
            tokens=span.tokens,
            tokens_by_run=span.tokens_by_run if len(runs) > 1 else {},
            threads=span.threads,
            flops=span.tokens * self._n_params * FLOPS_PER_WEIGHT.get(span.kind, 0.0),
            steps=span.steps,
            n_running=span.n_running,
            n_waiting=span.n_waiting,
            n_preempted=span.n_preempted,
            kv_blocks_used=span.kv_blocks_used,
        )
        with self._guarded():
            self.recorder.span(row)

    def event(self, run_id: RunId | None, kind: str, **detail: object) -> None:
        """Something that happened to a run, or to the launch."""
        with self._guarded():
            self.recorder.event(kind, now=self._now(), run=run_id, **detail)

    def keeps(self, kind: str) -> bool:
        """As the recorder does."""
        return self.recorder.keeps(kind)

    def decision(self, kind: str, view: object, state: State, plan: object) -> None:
        """A policy's answer and all that it was told."""
        with self._guarded():
            self.recorder.decision(
                kind, policy=self._policy, view=view, state=state, plan=plan, now=self._now()
            )

    def close(self) -> None:
        """The files are about to be closed. What still happens, as callers leave their blocks, is
        not written, and that is nobody's fault."""
        self._closed = True

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            if self.broken is None and not self._closed:
                self.broken = error
                self._on_broken(error)
