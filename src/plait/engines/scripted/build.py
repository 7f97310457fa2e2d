"""Build the scripted engines of one worker: the shape is the model directory's, the rest is toy.

Options: ``token_s`` (seconds per token of a forward step) and ``train_token_s``.
"""

from plait.engines.factory import EngineConfig, Engines
from plait.engines.scripted.rollout import ScriptedRollout
from plait.engines.scripted.train import ScriptedTrain
from plait.models.shape import read_shape

MAX_BATCH_TOKENS = 512


def build(config: EngineConfig) -> Engines:
    """Scripted rollout and training engines."""
    shape = read_shape(config.model_dir)
    rollout = train = None
    if config.rollout:
        rollout = ScriptedRollout(
            shape,
            config.kv_blocks,
            config.block_size,
            MAX_BATCH_TOKENS,
            config.max_seqs,
            token_s=config.options.get("token_s", 0.0),
        )
    if config.train:
        train = ScriptedTrain(shape, token_s=config.options.get("train_token_s", 0.0))
    return Engines(
        rollout=rollout,
        train=train,
        shape=shape,
        set_threads=lambda n: None,
        peak_flops=lambda: 0.0,
    )
