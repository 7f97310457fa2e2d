"""Tiny: the shape and alphabet of the byte-level model that plait ships.

A Llama of about 0.8 M parameters whose token ids 0..255 are the bytes themselves, so that every
text has one spelling. ``scripts/train_tiny.py`` trains it; the weights lie in
``models/data/tiny``.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

EOS = "<|end|>"
PAD = "<|pad|>"
EOS_ID = 256
PAD_ID = 257
VOCAB_SIZE = 264
"""256 bytes, two specials, six reserved: a multiple of eight keeps the last matmul aligned."""

CONFIG: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": None,
    "eos_token_id": EOS_ID,
    "pad_token_id": PAD_ID,
}
"""Arguments of ``LlamaConfig``; grouped heads, so that the cache is half of what it could be."""


def write_tokenizer(out: Path) -> None:
    """``tokenizer.json``, ``tokenizer_config.json`` and ``generation_config.json`` into ``out``."""
    letters = _byte_letters()
    tokenizer = Tokenizer(models.BPE(vocab={letters[b]: b for b in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    reserved = [f"<|reserved_{i}|>" for i in range(VOCAB_SIZE - 258)]
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in (EOS, PAD, *reserved)])
    tokenizer.save(str(out / "tokenizer.json"))
    _write(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": EOS,
            "pad_token": PAD,
            "model_max_length": CONFIG["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
        },
    )
    _write(out / "generation_config.json", {"eos_token_id": EOS_ID, "pad_token_id": PAD_ID})


def _byte_letters() -> list[str]:
    """The printable character that stands for each byte in a ByteLevel vocabulary (GPT-2's map)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in shown]
    letters = {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}
    return [letters[b] for b in range(256)]


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
