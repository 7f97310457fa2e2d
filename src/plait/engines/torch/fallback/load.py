"""Load: a checkpoint as a frozen ``transformers`` model, its weights mapped where they can be.

A checkpoint in another number format is converted once into the cache, so that every process maps
the same file. What the loaded model shows to be unfit is refused here.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from plait.core.errors import ModelError
from plait.engines.torch.fallback.board import Board
from plait.models.cache import build_once, cache_root
from plait.models.foreign import dtypes
from plait.models.shape import check_architecture

LAYOUT = "plain-1"
"""Part of the converted copy's name: raise it when what is written changes."""

ERRORS = (OSError, ValueError, LookupError, AttributeError, TypeError, RuntimeError, ImportError)
"""What a model that is put together otherwise than most may raise."""

FORMATS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
"""What safetensors call a number format."""


def load(
    model_dir: str | Path,
    *,
    dtype: torch.dtype,
    device: str,
    cache: Path | None,
) -> tuple[nn.Module, Board, dict[str, nn.Linear], str]:
    """The model, its board, its linear layers by their names, connected to the board, and which of
    them is the head (empty: none). ModelError if it cannot be run."""
    where = Path(model_dir)
    check_architecture(where)
    board = Board()
    _check_kind(where)
    model = _open(_in_format(where, dtype, cache), dtype, board.name).to(device).eval()
    model.requires_grad_(False)
    linears = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    output = model.get_output_embeddings()
    head = next((name for name, module in linears.items() if module is output), "")
    if any(p.ndim > 2 for p in model.parameters()):
        raise ModelError(f"{where} has experts or convolutions, which are not supported")
    if set(linears) <= {head}:
        raise ModelError(f"{where} has no linear layers that an adapter could be added to")
    for name, linear in linears.items():
        board.connect(name, linear, is_head=name == head)
    return model, board, linears, head


def _check_kind(where: Path) -> None:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    with told(where):
        config = AutoConfig.from_pretrained(where, local_files_only=True, trust_remote_code=False)
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if kind is None:
        raise ModelError(f"{where} is a {config.model_type}, no causal model of transformers")
    if not kind._supports_attention_backend:
        raise ModelError(
            f"{where} is a {kind.__name__}, whose attention in transformers cannot be exchanged: "
            "choose another model"
        )


def _in_format(where: Path, dtype: torch.dtype, cache: Path | None) -> Path:
    """``where``, or its converted copy."""
    if dtypes(where) == {FORMATS.get(dtype)}:
        return where
    source = where.resolve()
    shards = sorted(source.glob("*.safetensors"))
    stamp = [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in shards]
    text = json.dumps([LAYOUT, str(source), str(dtype), stamp])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    place = cache_root(cache) / "weights" / f"{source.name}-{LAYOUT}-{digest}"
    return build_once(place, lambda out: _open(source, dtype, "eager").save_pretrained(out))


def _open(where: Path, dtype: torch.dtype, attention: str) -> Any:
    from transformers import AutoModelForCausalLM

    with told(where), _quiet():
        model, found = AutoModelForCausalLM.from_pretrained(
            where,
            dtype=dtype,
            attn_implementation=attention,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    # transformers makes up what a checkpoint lacks.
    if missing := sorted(map(str, found["missing_keys"])):
        raise ModelError(f"{where} lacks the tensor {missing[0]}")
    return model


@contextmanager
def told(where: str | Path) -> Iterator[None]:
    """What ``transformers`` raises while it opens or tries a model, as a ModelError of one line."""
    try:
        yield
    except ERRORS as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"transformers cannot run {where} in plait's way: {first}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars of ``transformers`` in a worker's output."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
