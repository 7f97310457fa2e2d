"""Pool: the worker processes of one base model, kept alive.

One worker that rolls out and one that trains (``disaggregated``), or one that does both
(``collocated``). A worker that dies is replaced and its work put back; when replacements die
without getting anything done, the pool gives up and says why.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from plait.core.errors import PlaitError, WorkerLost
from plait.core.ids import WorkerId
from plait.runtime import messages as m
from plait.runtime.handle import WorkerHandle
from plait.runtime.settings import Settings
from plait.runtime.shares import Shares

MAX_RESTARTS = 5
"""Deaths in a row without a single finished operation in between before the pool gives up."""

SHARES = "shares"
"""Table of shares, in the launch directory: elsewhere it would outlive a head that is killed."""


class Pool:
    """Starts, replaces and stops workers; routes their answers."""

    def __init__(
        self,
        *,
        model_dir: Path,
        topology: str,
        settings: Settings,
        launch_dir: Path,
        on_answer: Callable[[WorkerHandle, m.Answer], None],
        on_lost: Callable[[WorkerHandle, str], None],
        on_attached: Callable[[WorkerHandle], None],
        on_given_up: Callable[[PlaitError], None],
    ) -> None:
        self._model_dir, self._settings, self._launch_dir = model_dir, settings, launch_dir
        self._on_answer, self._on_lost_cb = on_answer, on_lost
        self._on_attached, self._on_given_up = on_attached, on_given_up
        roles = (
            {"rollout-0": (True, False), "train-0": (False, True)}
            if topology == "disaggregated"
            else {"worker-0": (True, True)}
        )
        self._configs = [
            m.WorkerConfig(
                worker_id=WorkerId(name),
                slot=slot,
                rollout=rollout,
                train=train,
                engine=settings.engine,
                model_dir=str(model_dir),
                cores=settings.cores,
                kv_blocks=settings.kv_blocks,
                block_size=settings.block_size,
                max_seqs=settings.max_seqs,
                train_memory_bytes=settings.train_memory_bytes,
                options={"prefix_cache": float(not settings.deterministic)},
            )
            for slot, (name, (rollout, train)) in enumerate(roles.items())
        ]
        self._shares = launch_dir / SHARES
        self.workers: dict[WorkerId, WorkerHandle] = {}
        self._deaths = 0
        self._restarts: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def start(self) -> m.Ready:
        """Start every worker; the first one's answer (shape and peak rate)."""
        Shares.create(self._shares, len(self._configs))
        try:
            for config in self._configs:
                self.workers[config.worker_id] = self._spawn(config)
            ready = [await handle.wait_ready() for handle in self.workers.values()]
        except BaseException:
            await self.stop()
            raise
        for handle in self.workers.values():
            self._on_attached(handle)
        return ready[0]

    def answered(self) -> None:
        """Something got done: deaths before this are forgiven."""
        self._deaths = 0

    async def stop(self) -> None:
        """End every worker."""
        self._stopping = True
        for task in self._restarts:
            task.cancel()
        await asyncio.gather(*(w.stop() for w in self.workers.values()))
        self._shares.unlink(missing_ok=True)

    def _spawn(self, config: m.WorkerConfig) -> WorkerHandle:
        logs = self._launch_dir / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        return WorkerHandle(
            config,
            shares=self._shares,
            log=logs / f"{config.worker_id}.log",
            on_answer=self._on_answer,
            on_lost=self._lost,
        )

    def _lost(self, handle: WorkerHandle) -> None:
        if self._stopping:
            return
        why = handle.describe_exit()
        self._deaths += 1
        Shares(self._shares, slot=handle.config.slot, cores=1).release()
        self._on_lost_cb(handle, why)
        if self._deaths > MAX_RESTARTS:
            self._on_given_up(WorkerLost(f"{why}; gave up after {MAX_RESTARTS} restarts"))
            return
        task = asyncio.get_running_loop().create_task(self._replace(handle.config))
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    async def _replace(self, config: m.WorkerConfig) -> None:
        handle = self._spawn(config)
        self.workers[config.worker_id] = handle
        try:
            await handle.wait_ready()
        except WorkerLost as error:
            self._on_given_up(error)
            return
        self._on_attached(handle)
