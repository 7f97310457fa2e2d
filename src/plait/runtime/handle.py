"""Handle: the head's end of one worker process.

Reads answers on a thread of its own and hands them to the event loop in order; sends on another,
since a worker in the middle of a step reads nothing and the socket's buffer is soon full. Tells the
loop once when the process is gone.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from plait.cluster.local import WorkerProcess
from plait.core.errors import RequestError, WorkerLost
from plait.core.ids import WorkerId
from plait.runtime import messages as m

START_S = 180.0
"""How long building engines may take: the first use of a model converts and fuses its weights."""


class WorkerHandle:
    """One live worker."""

    def __init__(
        self,
        config: m.WorkerConfig,
        *,
        shares: Path,
        log: Path,
        on_answer: Callable[["WorkerHandle", m.Answer], None],
        on_lost: Callable[["WorkerHandle"], None],
    ) -> None:
        self.config, self.log = config, log
        self.ready: m.Ready | None = None
        self._on_answer, self._on_lost = on_answer, on_lost
        self._process = WorkerProcess(config, shares=shares, log=log)
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[m.Ready] = self._loop.create_future()
        self._stopping = False
        self._hung = ""
        """How it did, once it was killed for that."""
        self._outbox: queue.SimpleQueue[m.Command | None] = queue.SimpleQueue()
        """What is to be sent; ``None`` ends the thread that does it. Never longer than what the
        runs have asked for and not yet been answered."""
        self._threads = [
            threading.Thread(target=work, name=f"plait-{config.worker_id}-{name}", daemon=True)
            for name, work in (("read", self._read), ("send", self._send))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def worker_id(self) -> WorkerId:
        return self.config.worker_id

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait_ready(self) -> m.Ready:
        """Wait until its engines are built; WorkerLost with the end of its log if it fails."""
        try:
            async with asyncio.timeout(START_S):
                self.ready = await asyncio.shield(self._ready)
        except TimeoutError:
            self._process.kill()
            raise WorkerLost(
                f"worker {self.worker_id} did not start within {START_S:.0f} s; see {self.log}"
            ) from None
        return self.ready

    def send(self, command: m.Command) -> None:
        """Send a command, in the order of the calls; never blocks. A dead worker's loss is reported
        by ``on_lost``, not here."""
        self._outbox.put(command)

    async def stop(self) -> None:
        """Ask it to end and wait for that."""
        self._stopping = True
        self.send(m.Stop())
        await asyncio.to_thread(self._process.join)
        self._outbox.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join, 1.0)

    def kill(self) -> None:
        """End it now, as if it had crashed."""
        self._process.kill()

    def look(self) -> None:
        """Look for a sign of life, as often as ``Pulse`` says; a worker that hangs is ended as
        lost. One that is starting has its own time for that."""
        if self.ready is not None and not self._stopping:
            why = self._process.kill_if_hung()
            self._hung = self._hung or why

    def describe_exit(self) -> str:
        """How it ended, with the last line of its log."""
        code = self._process.exit_code()
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        if self._hung:
            how = f"killed, since {self._hung}"
        tail = (
            self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        )
        return f"worker {self.worker_id} ended ({how}): {tail[-1] if tail else 'nothing logged'}"

    def _read(self) -> None:
        try:
            while True:
                answer: m.Answer = self._process.conn.recv()
                self._loop.call_soon_threadsafe(self._deliver, answer)
        except (EOFError, OSError):
            pass
        if self._stopping:
            return
        self._outbox.put(None)
        self._process.join()  # here, since a process that hangs as it dies takes its time
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know
            self._loop.call_soon_threadsafe(self._lost)

    def _send(self) -> None:
        with contextlib.suppress(OSError):  # it is gone, as the reading thread notices too
            while (command := self._outbox.get()) is not None:
                try:
                    self._process.conn.send(command)
                except OSError:
                    raise
                except Exception as error:  # pickling: what a caller's object raises is its own
                    if isinstance(command, m.TrainTogether):  # only one run need be at fault
                        for op in command.ops:
                            self._outbox.put(m.Train(op=op))
                    else:
                        self._loop.call_soon_threadsafe(self._unsendable, command, error)

    def _unsendable(self, command: m.Command, error: Exception) -> None:
        """Nothing of the command was sent: whoever asked for it is told."""
        text = f"what was given cannot be sent to a worker ({error}): give plain numbers"
        ops = (command.op,) if isinstance(command, m.Train) else getattr(command, "ops", ())
        for op in ops:
            self._on_answer(self, m.Failed(op_id=op.op_id, code=RequestError.code, message=text))

    def _deliver(self, answer: m.Answer) -> None:
        if isinstance(answer, m.Ready):
            if not self._ready.done():
                self._ready.set_result(answer)
        else:
            self._on_answer(self, answer)

    def _lost(self) -> None:
        if not self._ready.done():
            self._ready.set_exception(WorkerLost(self.describe_exit()))
            self._ready.exception()  # nobody may be waiting any more
        elif not self._stopping:
            self._on_lost(self)
