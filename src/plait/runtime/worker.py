"""Worker process: hosts engines, takes commands between forward steps, reports what it did.

It decides nothing but how many threads it computes with (``Team``). Training gives way to a rollout
step after each micro-batch when both live here. Ends when told to, or when the head is gone. It
gives its cores back before it answers the last thing asked of it, so that whoever works next on the
answer has the whole machine, every time.
"""

import contextlib
import os
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection

from plait.cluster.doing import Doing
from plait.cluster.orphans import end_with_parent
from plait.cluster.pulse import beat
from plait.core.errors import EngineError, PlaitError, StoreError
from plait.core.ids import OpId
from plait.core.operations import Done
from plait.core.text import told
from plait.engines.factory import EngineConfig, Engines, make_engines
from plait.runtime import messages as m
from plait.runtime.meter import Meter
from plait.runtime.rolling import Rolling
from plait.runtime.shares import Shares
from plait.runtime.team import Team
from plait.runtime.training import Ended, Training

REPORT_S = 0.1
"""How often spans are sent: ten a second keep a live view current and cost nothing."""


class Worker:
    """One worker's loop."""

    def __init__(self, conn: Connection, config: m.WorkerConfig, team: Team, doing: Doing) -> None:
        self._conn, self._config, self._team, self._doing = conn, config, team, doing
        self._meter = Meter()
        self._reported_s = 0.0
        self._stopping = False

    def run(self) -> None:
        """Serve until stopped."""
        c = self._config
        engine_config = EngineConfig(
            model_dir=c.model_dir,
            rollout=c.rollout,
            train=c.train,
            kv_blocks=c.kv_blocks,
            block_size=c.block_size,
            max_seqs=c.max_seqs,
            train_memory_bytes=c.train_memory_bytes,
            device=c.device,
            dtype=c.dtype,
            options=c.options,
            on_layer=self._on_layer,
        )
        self._engines: Engines = make_engines(c.engine, engine_config)
        self._engines.set_threads(c.cores)
        self._team.serves(self._engines.set_threads)
        engine = self._engines.rollout
        self._rolling = None if engine is None else Rolling(engine)
        self._training = Training(self._engines.train, log=self._log)
        peak = self._engines.peak_flops() if c.slot == 0 else 0.0
        ready = m.Ready(
            worker_id=c.worker_id, pid=os.getpid(), shape=self._engines.shape, peak_flops=peak
        )
        self._conn.send(ready)
        while not self._stopping:
            busy = self._busy()
            if not busy:
                self._settle_accounts()
                self._team.release()
            while not self._stopping and self._conn.poll(0 if busy or self._busy() else None):
                self._handle(self._conn.recv())
            if self._training.has_work() and not self._stopping:
                self._train_slice()
            rolling = self._rolling
            if rolling is not None and rolling.has_work() and not self._stopping:
                self._rollout_step(rolling)
            self._report()

    def _on_layer(self) -> None:
        self._doing.gets_on()
        self._team.claim()

    def _busy(self) -> bool:
        rolls = self._rolling is not None and self._rolling.has_work()
        return rolls or self._training.has_work()

    def _handle(self, command: m.Command) -> None:
        rolling, train = self._rolling, self._engines.train
        match command:
            case m.Train():
                self._training.add(command)
            case m.TrainTogether():
                self._training.add(*(m.Train(op=op) for op in command.ops))
            case m.AddSamples() if rolling:
                for op in command.ops:
                    with _Attributed(self, op.op_id):
                        rolling.add(op)
            case m.AbortSamples() if rolling:
                for op_id, result in rolling.abort(command.op_ids):
                    self._conn.send(m.Finished(op_id=op_id, result=result))
            case m.ExportSamples() if rolling:
                self._settle_accounts()  # what they did here comes before what they do elsewhere
                for op_id in command.op_ids:
                    with _Attributed(self, op_id):
                        if (moved := rolling.export(op_id, kv=command.kv)) is not None:
                            self._conn.send(m.Exported(moved=moved))
            case m.ImportSample() if rolling:
                op_id = command.moved.op.op_id
                with _Attributed(self, op_id), self._doing.one("taking over a sample"):
                    rolling.take(command.moved)
            case m.LoadAdapter() if rolling:
                with _Attributed(self, command.op_id):
                    with self._doing.one(f"loading version {command.version} of {command.run_id}"):
                        rolling.engine.load_adapter(command.run_id, command.version, command.path)
                    self._conn.send(m.Finished(op_id=command.op_id, result=Done()))
            case m.DropAdapter() if rolling:
                rolling.engine.drop_adapter(command.run_id, command.version)
            case m.MarkPrefix() if rolling:
                rolling.engine.mark_prefix(
                    command.run_id, command.version, command.tokens, command.keep
                )
            case m.SetPaused() if rolling:
                rolling.set_paused(command.run_id, command.paused)
            case m.DropRun() if train:
                train.drop(command.run_id)
            case m.Stop():
                self._stopping = True

    def _rollout_step(self, rolling: Rolling) -> None:
        t0 = self._team.begin()
        with self._doing.one("a forward step"):
            step, ends_run = rolling.step()
        t1, threads = self._team.end()
        self._meter.add(
            m.Span(
                kind="rollout",
                t0=t0,
                t1=t1,
                threads=threads,
                tokens=step.n_tokens,
                steps=1,
                tokens_by_run=step.tokens_by_run,
                n_running=step.n_running,
                n_waiting=step.n_waiting,
                n_preempted=step.n_preempted,
                kv_blocks_used=step.kv_blocks_used,
                short_of_blocks=step.short_of_blocks,
                kv_blocks_idle=step.kv_blocks_idle,
                n_evicted=step.n_evicted,
                kv_block_s_by_run={k: v * (t1 - t0) for k, v in step.kv_blocks_by_run.items()},
            )
        )
        self._release_if_idle()
        if ends_run:  # its rollout is accounted for before anybody hears that it is over
            self._settle_accounts()
        for op_id, result in step.finished:
            self._conn.send(m.Finished(op_id=op_id, result=result))
        for op_id, error in step.failed:
            self.fail(op_id, error)

    def _train_slice(self) -> None:
        """One micro-batch of what is first in training; answers what is done."""
        t0 = self._team.begin()
        with self._doing.one(self._training.what):
            done = self._training.slice(t0)
        if done.broken:
            self._release_if_idle()
            for ended in done.ended:
                self._answer(ended, 0.0)
            return
        t1, threads = self._team.end()
        self._meter.add(
            m.Span(
                kind=done.kind,
                t0=t0,
                t1=t1,
                threads=threads,
                tokens=sum(done.tokens_by_run.values()),
                steps=1,
                tokens_by_run=done.tokens_by_run,
            )
        )
        if done.ended:
            self._release_if_idle()
        for ended in done.ended:
            self._answer(ended, ended.part * (t1 - ended.since_s))

    def _answer(self, ended: Ended, seconds: float) -> None:
        if isinstance(ended.outcome, Exception):
            self.fail(ended.op_id, ended.outcome)
        else:
            self._conn.send(m.Finished(op_id=ended.op_id, result=ended.outcome, seconds=seconds))

    def _release_if_idle(self) -> None:
        if not self._busy():
            self._team.release()

    def _settle_accounts(self) -> None:
        self._meter.close()
        self._report(force=True)

    def _report(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now - self._reported_s >= REPORT_S:
            spans = self._meter.drain()
            if spans:
                self._conn.send(m.Report(spans=spans))
            for news in () if self._rolling is None else self._rolling.drawn():
                self._conn.send(news)
            self._reported_s = now

    def fail(self, op_id: OpId, error: Exception) -> None:
        """The one recorder: every exception of an operation becomes that operation's answer."""
        if isinstance(error, PlaitError):
            code, message = error.code, str(error)
        elif isinstance(error, OSError):
            code, message = StoreError.code, f"{error}; free space or check the path, then resume"
        else:
            self._log(error)
            code, message = EngineError.code, told(error)
        self._conn.send(m.Failed(op_id=op_id, code=code, message=message))

    def _log(self, error: Exception) -> None:
        with contextlib.suppress(OSError):  # the disk of the log may be full
            traceback.print_exception(error)


class _Attributed:
    """Turns an exception inside the block into the answer of one operation."""

    def __init__(self, worker: Worker, op_id: OpId) -> None:
        self._worker, self._op_id = worker, op_id

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Exception):
            self._worker.fail(self._op_id, error)
            return True
        return False


def main() -> None:
    """Entry point of ``python -m plait.runtime.worker FD PULSE_FD SHARES``; the first message is
    the configuration."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    conn = Connection(int(sys.argv[1]))
    doing = Doing()
    beat(int(sys.argv[2]), doing)
    try:
        config: m.WorkerConfig = conn.recv()
        shares = Shares(sys.argv[3], slot=config.slot, cores=config.cores, elastic=config.elastic)
        team = Team(shares)
        doing.limit_s = config.step_limit_s
        try:
            Worker(conn, config, team, doing).run()
        finally:
            team.release()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


if __name__ == "__main__":
    main()
