"""Carry out: what a training-side operation does to a worker's training engine, slice by slice.

A version is durable under its final name before the operation that made it is answered.
"""

from collections.abc import Generator
from pathlib import Path

from plait.core.operations import (
    Create,
    Done,
    Forward,
    ForwardBackward,
    ForwardResult,
    Load,
    OptimStep,
    Result,
    Save,
    StepResult,
    TrainOp,
)
from plait.engines.protocol import TrainEngine, TrainStep
from plait.runtime.messages import Train
from plait.store.files import VersionWriter


def carry_out(engine: TrainEngine, task: Train) -> Generator[TrainStep, None, Result]:
    """What must come before, then the operation; yields after each micro-batch."""
    for op in task.before:
        yield from _operation(engine, op, None)
    return (yield from _operation(engine, task.op, task.save_to))


def _operation(
    engine: TrainEngine, op: TrainOp, save_to: str | None
) -> Generator[TrainStep, None, Result]:
    match op:
        case Forward():
            return (yield from engine.forward(op.run_id, op.data, adapter=op.adapter))
        case ForwardBackward():
            result: ForwardResult = yield from engine.forward_backward(
                op.run_id, op.data, op.loss, op.loss_config
            )
            return result
        case OptimStep():
            step: StepResult = engine.optim_step(op.run_id, op.adam)
            _write_version(engine, op, save_to)
            return step
        case Create():
            engine.create(op.run_id, op.lora)
            _write_version(engine, op, save_to)
            return Done(path=save_to or "")
        case Save():
            with VersionWriter(Path(op.path)) as folder:
                engine.save(op.run_id, str(folder), optimizer=op.optimizer)
            return Done(path=op.path)
        case Load():
            engine.load(op.run_id, op.path, optimizer=op.optimizer)
            _write_version(engine, op, save_to)
            return Done(path=op.path)


def _write_version(engine: TrainEngine, op: Create | OptimStep | Load, save_to: str | None) -> None:
    if save_to is not None:
        with VersionWriter(Path(save_to)) as folder:
            engine.save(op.run_id, str(folder), optimizer=True)
