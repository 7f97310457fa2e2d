"""A scripted engine that takes its time, so that a test can act while samples are under way."""

from plait.engines.factory import EngineConfig, Engines
from plait.engines.scripted.build import MAX_BATCH_TOKENS
from plait.engines.scripted.build import build as build_scripted
from plait.engines.scripted.rollout import ScriptedRollout

ENGINE = "slow_engine:build"
STEP_S = 0.01
POISON = 66
"""A prompt that begins with this token kills the worker as it is drawn from."""


class Poisoned(ScriptedRollout):
    """Dies, as from a fault in native code, when it meets the poison."""

    def _advance(self, sequence):  # type: ignore[no-untyped-def]
        if sequence.group.op.prompt[0] == POISON and len(sequence.tokens) > 2:
            raise SystemExit(66)
        return super()._advance(sequence)


def build(config: EngineConfig) -> Engines:
    """The scripted engines with ``STEP_S`` per forward step."""
    engines = build_scripted(config)
    if not config.rollout:
        return engines
    rollout = Poisoned(
        engines.shape,
        config.kv_blocks,
        config.block_size,
        MAX_BATCH_TOKENS,
        config.max_seqs,
        step_s=STEP_S,
    )
    return Engines(
        rollout=rollout,
        train=engines.train,
        shape=engines.shape,
        set_threads=engines.set_threads,
        peak_flops=engines.peak_flops,
    )
