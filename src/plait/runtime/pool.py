"""Pool: the worker processes of one base model, kept alive.

Workers that roll out and workers that train (``disaggregated``), or one that does both
(``collocated``). A worker that dies, or hangs (``cluster.pulse``), is replaced and its work put
back; when replacements die or cannot start, without getting anything done, the pool gives up and
says why.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from plait.cluster import pulse
from plait.core.errors import ConfigError, PlaitError, WorkerLost
from plait.core.ids import WorkerId
from plait.runtime import messages as m
from plait.runtime.handle import WorkerHandle
from plait.runtime.settings import Settings
from plait.runtime.shares import Shares

MAX_RESTARTS = 5
"""Deaths in a row without a single finished operation in between before the pool gives up."""

RESTART_WAIT_S = 0.2
"""Before another try at a worker that did not start: what it lacks (memory) may be coming back."""

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
        several = max(settings.rollout_workers, settings.training_workers) > 1
        if topology != "disaggregated" and several:
            raise ConfigError(
                "rollout_workers and training_workers need a policy whose workers do one thing each"
            )
        rollouts = {f"rollout-{i}": (True, False) for i in range(settings.rollout_workers)}
        trainers = {f"train-{i}": (False, True) for i in range(settings.training_workers)}
        roles = (
            {**rollouts, **trainers} if topology == "disaggregated" else {"worker-0": (True, True)}
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
                kv_blocks=settings.worker_kv_blocks,
                block_size=settings.block_size,
                max_seqs=settings.max_seqs,
                train_memory_bytes=settings.train_memory_bytes,
                elastic=settings.elastic,
                step_limit_s=settings.step_limit_s,
                device=settings.device,
                dtype=settings.dtype,
                options={
                    "deterministic": float(settings.deterministic),
                    "pack_layers": float(not settings.lean),
                    "recompute": float(settings.recompute),
                    "cuda_graphs": float(settings.cuda_graphs),
                },
            )
            for slot, (name, (rollout, train)) in enumerate(roles.items())
        ]
        self._shares = launch_dir / SHARES
        self.workers: dict[WorkerId, WorkerHandle] = {}
        self._deaths = 0
        self._restarts: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def training(self) -> tuple[WorkerId, ...]:
        """The workers that train."""
        return tuple(config.worker_id for config in self._configs if config.train)

    async def start(self) -> m.Ready:
        """Start every worker; the first one's answer (shape and peak rate)."""
        Shares.create(self._shares, len(self._configs))
        try:
            for config in self._configs:
                self.workers[config.worker_id] = self._spawn(config)
            ready = [await handle.wait_ready() for handle in self.workers.values()]
        except BaseException:
            for handle in self.workers.values():
                handle.kill()  # it would read the rest of its model first, and has nothing to lose
            await self.stop()
            raise
        for handle in self.workers.values():
            self._on_attached(handle)
        self._watch = asyncio.get_running_loop().create_task(self._watching())
        return ready[0]

    def answered(self) -> None:
        """Something got done: deaths before this are forgiven."""
        self._deaths = 0

    async def stop(self) -> None:
        """End every worker."""
        self._stopping = True
        tasks = (*self._restarts, *([] if self._watch is None else [self._watch]))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(w.stop() for w in self.workers.values()))
        self._shares.unlink(missing_ok=True)

    def _spawn(self, config: m.WorkerConfig) -> WorkerHandle:
        logs = self._launch_dir / "logs"
        try:
            logs.mkdir(parents=True, exist_ok=True)
            return WorkerHandle(
                config,
                shares=self._shares,
                log=logs / f"{config.worker_id}.log",
                on_answer=self._on_answer,
                on_lost=self._lost,
            )
        except OSError as error:
            raise WorkerLost(
                f"worker {config.worker_id} cannot be started ({error}): "
                "free some memory and disk space, then resume"
            ) from error

    async def _watching(self) -> None:
        while True:
            await asyncio.sleep(pulse.SILENT_S / pulse.LOOKS)
            for handle in self.workers.values():
                handle.look()

    def _lost(self, handle: WorkerHandle) -> None:
        if self._stopping:
            return
        why = handle.describe_exit()
        with contextlib.suppress(OSError):  # without its table the others keep their threads
            Shares(self._shares, slot=handle.config.slot, cores=1).release()
        self._on_lost_cb(handle, why)
        if self._may_restart(WorkerLost(why)):
            task = asyncio.get_running_loop().create_task(self._replace(handle.config))
            self._restarts.add(task)
            task.add_done_callback(self._restarts.discard)

    def _may_restart(self, error: WorkerLost) -> bool:
        """Count a death; False, and everybody is told, when there have been too many."""
        self._deaths += 1
        if self._deaths <= MAX_RESTARTS:
            return True
        self._on_given_up(WorkerLost(f"{error}; gave up after {MAX_RESTARTS} restarts"))
        return False

    async def _replace(self, config: m.WorkerConfig) -> None:
        while True:
            try:
                handle = self.workers[config.worker_id] = self._spawn(config)
                await handle.wait_ready()
            except WorkerLost as error:
                if not self._may_restart(error):
                    return
                await asyncio.sleep(RESTART_WAIT_S)
            else:
                self._on_attached(handle)
                return
