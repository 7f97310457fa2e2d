"""Convert: a GGUF file into a Hugging Face directory, in a process of its own.

``python -m plait.engines.torch.convert MODEL.gguf OUT`` writes fp32 safetensors (a dequantised
weight is a product of a half-precision scale and an integer: bf16 would round it), tokenizer and
chat template into the existing directory OUT. The quantization section is dropped: the
weights that are written are plain. Atomicity and locking are the caller's (``plait.models.cache``).
"""

import json
import sys
from pathlib import Path

PRE_TOKENIZERS_WITH_SINGLE_DIGITS = ("smollm", "refact", "starcoder", "command-r", "codeshell")
"""GGUF names of pre-tokenizers that cut numbers into single digits before byte-level splitting;
transformers builds the GPT-2 one for all of them."""

END_TOKENS = ("<|im_end|>", "<|endoftext|>", "</s>")
"""Tokens that end an answer in the chat formats that GGUF files of small Llamas use."""


def convert(gguf: Path, out: Path) -> None:
    """Write the model, tokenizer and generation config of ``gguf`` into ``out``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    ends = [tokenizer.convert_tokens_to_ids(t) for t in END_TOKENS if t in tokenizer.get_vocab()]
    if tokenizer.eos_token_id is not None:
        ends.append(tokenizer.eos_token_id)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=sorted(set(ends)) or None,
        pad_token_id=tokenizer.pad_token_id,
    )
    if not all(bool(torch.isfinite(p).all()) for p in model.parameters()):
        raise ValueError(f"{gguf} holds weights that are not finite")
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    if _pre_tokenizer(gguf) in PRE_TOKENIZERS_WITH_SINGLE_DIGITS:
        _split_digits(out / "tokenizer.json")


def _pre_tokenizer(gguf: Path) -> str:
    from gguf import GGUFReader

    field = GGUFReader(gguf).get_field("tokenizer.ggml.pre")
    return "" if field is None else str(field.contents())


def _split_digits(tokenizer_json: Path) -> None:
    content = json.loads(tokenizer_json.read_text())
    digits = {"type": "Digits", "individual_digits": True}
    old = content.get("pre_tokenizer")
    parts = old["pretokenizers"] if old and old["type"] == "Sequence" else [old] if old else []
    if digits not in parts:
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, *parts]}
        tokenizer_json.write_text(json.dumps(content, ensure_ascii=False))


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
