"""Bench: a process that does one kind of work at a time for as long as it is asked to, and says how
long each unit of it took.

``python -m plait.engines.torch.bench FD MODEL_DIR CACHE_TOKENS DEVICE DTYPE``: takes ``Ask``s from
the socket, answers each with ``Took``, and ends when the socket closes. Two of them with shares of
the cores measure what co-location costs. The clock is the machine's, so that both keep to one
window.
"""

import contextlib
import os
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from plait.cluster.bench import Ask, Ready, Refused, Took, Window
from plait.cluster.orphans import end_with_parent
from plait.core.errors import PlaitError
from plait.core.runs import LoraSpec
from plait.engines.factory import BLOCK_SIZE, TRAIN_BYTES, EngineConfig
from plait.engines.torch import loads
from plait.engines.torch.build import build

TASKS = "/proc/self/task"
MAX_SEQS = 64
"""As in a launch; the most rows that are asked for."""
CUDA_TRAIN_BYTES = 8_000_000_000
"""Micro-batches of some thousand tokens; what a launch takes depends on what is free."""


class Bench:
    """Both engines over one model, and the work that can be asked of them."""

    def __init__(self, model_dir: str, *, cache_tokens: int, device: str, dtype: str) -> None:
        memory_bytes = TRAIN_BYTES if device == "cpu" else CUDA_TRAIN_BYTES
        engines = build(
            EngineConfig(
                model_dir=model_dir,
                rollout=True,
                train=True,
                kv_blocks=cache_tokens // BLOCK_SIZE,
                block_size=BLOCK_SIZE,
                max_seqs=MAX_SEQS,
                train_memory_bytes=memory_bytes,
                device=device,
                dtype=dtype,
            )
        )
        self.rollout, self.train = engines.rollout, engines.train
        self.train.create(loads.RUN, LoraSpec())

    def work(self, ask: Ask) -> loads.Timed:
        """Units of what is asked for."""
        vocab = self.rollout.shape.vocab_size
        match ask.what:
            case "decode":
                return loads.decode(self.rollout, ask.rows, ask.tokens)
            case "decode_adapter":
                self._publish()
                return loads.decode(self.rollout, ask.rows, ask.tokens, version=1)
            case "prefill":
                return loads.prefill(self.rollout, ask.tokens)
            case "train":
                return loads.train(self.train, vocab, ask.rows, ask.tokens)
            case "reference":
                return loads.reference(self.train, vocab, ask.rows, ask.tokens)
            case "sync":
                return self._syncs()
        raise ValueError(f"no such work: {ask.what}")

    def done(self, ask: Ask) -> None:
        """Leave nothing behind for the next."""
        self.rollout.abort([loads.op_id(i) for i in range(max(1, ask.rows))])
        self.rollout.drop_adapter(loads.RUN, 1)

    def _publish(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            self.train.save(loads.RUN, directory, optimizer=False)
            self.rollout.drop_adapter(loads.RUN, 1)
            self.rollout.load_adapter(loads.RUN, 1, directory)

    def _syncs(self) -> loads.Timed:
        while True:
            t0 = time.monotonic()
            self._publish()
            yield t0, time.monotonic()


def serve(conn: Connection, bench: Bench) -> None:
    """Answer what is asked until the other end closes."""
    with contextlib.suppress(EOFError):
        while True:
            ask: Ask = conn.recv()
            try:
                torch.set_num_threads(ask.threads)
                units = bench.work(ask)
                next(units)  # warms caches, buffers and the team of threads
                pin(ask.cores)
                next(units)
                t0, t1 = next(units)
                conn.send(Ready(unit_s=t1 - t0))
                window: Window = conn.recv()
                conn.send(Took(seconds=tuple(within(units, window))))
                bench.done(ask)
            except PlaitError as error:
                conn.send(Refused(message=str(error)))


def within(units: loads.Timed, window: Window) -> list[float]:
    """Seconds of the units that lie in the window whole. Work goes on from now to its end."""
    took = []
    for t0, t1 in units:
        if t1 >= window.end_s:
            return took
        if t0 >= window.start_s:
            took.append(t1 - t0)
    return took


def pin(cores: tuple[int, ...]) -> None:
    """Keep all threads of this process to ``cores``, where the system can."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        return
    for task in Path(TASKS).iterdir() if Path(TASKS).is_dir() else ():
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            os.sched_setaffinity(int(task.name), cores)


def main() -> None:
    end_with_parent()
    fd, model_dir, cache_tokens, device, dtype = sys.argv[1:]
    bench = Bench(model_dir, cache_tokens=int(cache_tokens), device=device, dtype=dtype)
    serve(Connection(int(fd)), bench)


if __name__ == "__main__":
    main()
