"""Random models of families that our own forward does not know, by ``transformers`` itself.

Weights are drawn wide, so that every part of a family shows in its logits: windows, caps, scales,
biases, norms in odd places, products of queries, keys and values in one.
"""

from pathlib import Path
from typing import Any

VOCAB_SIZE = 264
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
GEMMA: dict[str, Any] = {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 24}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": (
        "Gemma2",
        GEMMA | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 6.0},
    ),
    "gemma3": ("Gemma3Text", GEMMA | {"layer_types": ["sliding_attention", "full_attention"]}),
    "olmo2": ("Olmo2", {}),
    "phi3": ("Phi3", {"sliding_window": 12}),
    "gpt-neox": ("GPTNeoX", {"rotary_pct": 0.5, "num_key_value_heads": None}),
    "granite": ("Granite", {"attention_multiplier": 0.2, "logits_scaling": 3.0}),
    "starcoder2": ("Starcoder2", {"sliding_window": None, "use_bias": True}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0]}),
    "minicpm3": (
        "MiniCPM3",
        {
            "num_key_value_heads": 6,
            "q_lora_rank": 16,
            "kv_lora_rank": 12,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4,
            "v_head_dim": 10,
        },
    ),
    "mistral": ("Mistral", {"sliding_window": 7}),
}


def foreign_model(
    folder: Path, family: str, *, seed: int = 0, dtype: Any = None, **more: Any
) -> Path:
    """Write a Hugging Face directory of a two-layer model into ``folder`` and return it."""
    import torch
    import transformers

    from plait.models.tiny import write_tokenizer

    name, own = FAMILIES[family]
    found = {k: v for k, v in (COMMON | own | more).items() if k in more or v is not None}
    config = getattr(transformers, f"{name}Config")(**found)
    for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(config, key, None)
    with torch.random.fork_rng():  # the same model whichever tests ran before
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.parameters():
            wide = torch.randn(tensor.shape, generator=generator)
            tensor.add_(wide, alpha=0.15 if tensor.ndim > 1 else 0.3)
    model.generation_config.eos_token_id = None
    model.to(dtype or torch.float32).save_pretrained(folder)
    write_tokenizer(folder)
    (folder / "generation_config.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    return folder
