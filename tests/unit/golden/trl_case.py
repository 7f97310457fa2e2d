"""The case that TRL and plait both compute: a two-layer Llama, a LoRA adapter with B ≠ 0, and three
groups of four rollouts, some with an environment's words between the policy's.

Everything is drawn with NumPy from fixed seeds (or written out), so the same bits arise wherever
this runs. Needs neither torch nor TRL. ``scripts/trl_golden.py`` computes the reference with it.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

VOCAB, HIDDEN, INTER, LAYERS, HEADS, KV_HEADS = 61, 32, 48, 2, 4, 2
RANK, ALPHA = 4, 8.0
SAMPLES = 4
MAX_COMPLETION_LENGTH = 16

PROMPTS = ((5, 9, 13), (7, 7, 21, 40, 2), (11, 3))
REWARDS = (1.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.25)
"""The second group has no signal."""
LENGTHS = (3, 9, 5, 12, 4, 4, 6, 2, 7, 1, 10, 8)
OBSERVED = {1: (3, 6), 3: (4, 5), 10: (2, 7)}
"""Rollout to the span of its completion that the environment wrote."""

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INTER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HIDDEN // HEADS,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "dtype": "float32",
}

_SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN // HEADS * KV_HEADS, HIDDEN),
    "self_attn.v_proj": (HIDDEN // HEADS * KV_HEADS, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INTER, HIDDEN),
    "mlp.up_proj": (INTER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INTER),
}


def write_model(path: Path) -> None:
    """The base model as a Hugging Face directory."""
    rng = np.random.default_rng(20)
    tensors = {
        "model.embed_tokens.weight": _normal(rng, (VOCAB, HIDDEN), 1.0),
        "model.norm.weight": np.ones(HIDDEN, dtype=np.float32),
        "lm_head.weight": _normal(rng, (VOCAB, HIDDEN), 0.25),
    }
    for layer in range(LAYERS):
        stem = f"model.layers.{layer}."
        for name, shape in _SHAPES.items():
            tensors[f"{stem}{name}.weight"] = _normal(rng, shape, shape[1] ** -0.5)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{stem}{name}.weight"] = np.ones(HIDDEN, dtype=np.float32)
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(CONFIG))


def write_adapter(path: Path, base_model: Path) -> None:
    """The adapter as PEFT files."""
    rng = np.random.default_rng(21)
    tensors = {}
    for layer in range(LAYERS):
        for name, (n_out, n_in) in _SHAPES.items():
            stem = f"base_model.model.model.layers.{layer}.{name}.lora_"
            tensors[f"{stem}A.weight"] = _normal(rng, (RANK, n_in), n_in**-0.5)
            tensors[f"{stem}B.weight"] = _normal(rng, (n_out, RANK), 0.1)
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base_model),
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": [name.split(".")[1] for name in _SHAPES],
        "lora_dropout": 0.0,
        "bias": "none",
    }
    (path / "adapter_config.json").write_text(json.dumps(config))


def completions() -> list[list[int]]:
    """Tokens after the prompt of each rollout, the environment's included."""
    rng = np.random.default_rng(22)
    return [rng.integers(2, VOCAB, size=n).tolist() for n in LENGTHS]


def sampled_masks() -> list[list[bool]]:
    """Per rollout and completion token: did the policy draw it?"""
    return [
        [not (b in OBSERVED and OBSERVED[b][0] <= i < OBSERVED[b][1]) for i in range(n)]
        for b, n in enumerate(LENGTHS)
    ]


def drift() -> list[list[float]]:
    """What the sampler's log-probs differ by from the trained policy's in the off-policy cases:
    large enough that both bounds of the clip act."""
    rng = np.random.default_rng(23)
    return [np.round(rng.normal(0.0, 0.25, size=n), 4).tolist() for n in LENGTHS]


def _normal(rng: np.random.Generator, shape: tuple[int, ...], std: float) -> np.ndarray:
    return (rng.standard_normal(shape) * std).astype(np.float32)
