"""Scripted engines whose trainer takes its time, so that gradients of several runs wait together.

A datum that begins with a poison token does what its name says wherever it is trained.
"""

import os
import threading
import time
from dataclasses import replace

from plait.engines.factory import EngineConfig, Engines
from plait.engines.scripted.build import build as build_scripted
from plait.engines.scripted.train import ScriptedTrain

ENGINE = "slow_trainer:build"
TOKEN_S = 0.1
DEADLY, BREAKS_COMPANY, LONG, ENDLESS, STEADY = 66, 67, 68, 69, 70
LONG_S = 10.0
STEPS, STEP_S = 16, 0.25
"""Of what gets on steadily."""


class SlowTrain(ScriptedTrain):
    """Slow; dies of one poison, and of the other raises what names no culprit."""

    def forward_backward(self, run_id, data, loss, config):  # type: ignore[no-untyped-def]
        _meet(data)
        if data[0].input_tokens[0] == LONG:
            _compute(LONG_S)
        if data[0].input_tokens[0] == ENDLESS:
            threading.Event().wait()  # the interpreter is free, as under native code that let it go
        if data[0].input_tokens[0] == STEADY:
            for _ in range(STEPS):
                time.sleep(STEP_S)
                self.on_layer()
        return (yield from super().forward_backward(run_id, data, loss, config))

    def forward_backward_many(self, ops):  # type: ignore[no-untyped-def]
        for op in ops:
            _meet(op.data)
        if any(op.data[0].input_tokens[0] == BREAKS_COMPANY for op in ops):
            raise RuntimeError("something is wrong with one of them")
        return (yield from super().forward_backward_many(ops))


def _meet(data) -> None:  # type: ignore[no-untyped-def]
    if any(datum.input_tokens[0] == DEADLY for datum in data):
        os._exit(66)


def _compute(seconds: float) -> None:
    """Without a pause, and without letting go of the interpreter of its own accord."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


def build(config: EngineConfig) -> Engines:
    """The scripted engines with ``TOKEN_S`` per trained token."""
    engines = build_scripted(config)
    if not config.train:
        return engines
    train = SlowTrain(engines.shape, token_s=TOKEN_S)
    train.on_layer = config.on_layer
    return replace(engines, train=train)
