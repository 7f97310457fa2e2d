"""Models: shapes from published configurations, and what follows from a shape alone.

Parameters, FLOPs per token and KV bytes per token are exact counts. Times are the roofline's.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.core.errors import ConfigError
from plait.sim.costs.names import pick


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder of the Llama and Qwen families, dense or with routed experts."""

    name: str
    hidden: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    intermediate: int
    """Of the dense MLP, or of one expert."""
    vocab: int
    tied: bool = False
    """One table for embedding and head."""
    qkv_bias: bool = False
    qk_norm: bool = False
    n_experts: int = 0
    """0: dense."""
    top_k: int = 0
    """Experts that a token goes through."""

    @property
    def attention_params(self) -> int:
        """Of one layer, norms and biases included."""
        out, kv = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        return (
            2 * self.hidden * (out + kv)
            + (out + 2 * kv if self.qkv_bias else 0)
            + (2 * self.head_dim if self.qk_norm else 0)
            + 2 * self.hidden
        )

    @property
    def expert_params(self) -> int:
        """Of one expert of one layer, or of the dense MLP."""
        return 3 * self.hidden * self.intermediate

    @property
    def always_params(self) -> int:
        """Of the layers, read and computed for each token: all but the routed experts."""
        own = self.hidden * self.n_experts if self.n_experts else self.expert_params
        return self.n_layers * (self.attention_params + own) + self.hidden

    @property
    def head_params(self) -> int:
        return self.vocab * self.hidden

    @property
    def n_params(self) -> int:
        """All of them, as model cards count."""
        routed = self.n_layers * self.n_experts * self.expert_params
        return self.always_params + routed + self.head_params * (1 if self.tied else 2)

    @property
    def n_active(self) -> int:
        """Those that a token goes through; equal to all where the model is dense."""
        idle = self.n_layers * (self.n_experts - self.top_k) * self.expert_params
        return self.n_params - (idle if self.n_experts else 0)

    @property
    def body_flops(self) -> float:
        """Forward, per token, of the layers' products; two per weight."""
        routed = self.n_layers * self.top_k * self.expert_params
        return 2.0 * (self.always_params + routed)

    @property
    def head_flops(self) -> float:
        """Forward, per position whose logits are wanted."""
        return 2.0 * self.head_params

    @property
    def attention_flops(self) -> float:
        """Forward, per pair of a new token and a token that it looks at."""
        return 4.0 * self.n_layers * self.n_heads * self.head_dim

    @property
    def kv_values(self) -> int:
        """Numbers cached per token."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim

    def adapter_params(self, rank: int) -> int:
        """Of a LoRA adapter on the attention's projections and a dense MLP's.

        Routed experts get none: that would be an adapter for each of them.
        """
        out, kv, h = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim, self.hidden
        sides = 2 * (h + out) + 2 * (h + kv)
        if not self.n_experts:
            sides += 3 * (h + self.intermediate)
        return self.n_layers * rank * sides


def _qwen3(name: str, *shape: int, tied: bool = False, experts: tuple[int, int] = (0, 0)) -> Model:
    hidden, layers, heads, kv_heads, intermediate = shape
    return Model(
        name=name,
        hidden=hidden,
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=128,
        intermediate=intermediate,
        vocab=151_936,
        tied=tied,
        qk_norm=True,
        n_experts=experts[0],
        top_k=experts[1],
    )


def _plain(name: str, *shape: int, tied: bool = False, bias: bool = False) -> Model:
    hidden, layers, heads, kv_heads, intermediate, vocab = shape
    return Model(
        name=name,
        hidden=hidden,
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate=intermediate,
        vocab=vocab,
        tied=tied,
        qkv_bias=bias,
    )


# Each from the config.json of the model's repository on the Hugging Face hub.
MODELS = {
    model.name: model
    for model in (
        _qwen3("qwen3-0.6b", 1024, 28, 16, 8, 3072, tied=True),
        _qwen3("qwen3-1.7b", 2048, 28, 16, 8, 6144, tied=True),
        _qwen3("qwen3-4b", 2560, 36, 32, 8, 9728, tied=True),
        _qwen3("qwen3-8b", 4096, 36, 32, 8, 12288),
        _qwen3("qwen3-14b", 5120, 40, 40, 8, 17408),
        _qwen3("qwen3-32b", 5120, 64, 64, 8, 25600),
        _qwen3("qwen3-30b-a3b", 2048, 48, 32, 4, 768, experts=(128, 8)),
        _qwen3("qwen3-235b-a22b", 4096, 94, 64, 4, 1536, experts=(128, 8)),
        _plain("qwen2.5-7b", 3584, 28, 28, 4, 18944, 152_064, bias=True),
        _plain("qwen2.5-14b", 5120, 48, 40, 8, 13824, 152_064, bias=True),
        _plain("deepseek-r1-distill-qwen-14b", 5120, 48, 40, 8, 13824, 152_064, bias=True),
        _plain("llama-3.1-8b", 4096, 32, 32, 8, 14336, 128_256),
        _plain("smollm2-135m", 576, 30, 9, 3, 1536, 49_152, tied=True),
    )
}
"""By name, in small letters, as the hub writes it without owner and ``-Instruct``."""


def model_of(name: str) -> Model:
    """The model called ``name``, or the one that a config.json (or its directory) describes."""
    path = Path(name)
    if name.endswith(".json") or ("/" in name and path.exists()):
        return read_model(path)
    short = name.lower().rsplit("/", 1)[-1].removesuffix("-instruct").removesuffix("-base")
    return pick("model", short, MODELS)


def read_model(path: Path) -> Model:
    """The model that a Hugging Face config.json (or the directory with it) describes."""
    file = path if path.suffix == ".json" else path / "config.json"
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"cannot read {file}: give a Hugging Face config.json, or one of {', '.join(MODELS)}"
        ) from error
    if not isinstance(config, dict):
        raise ConfigError(f"{file} is no Hugging Face config.json: it should hold an object")
    try:
        return _from_config(path.parent.name if path.suffix == ".json" else path.name, config)
    except KeyError as error:
        raise ConfigError(f"{file} has no {error}: save the model's configuration again") from error
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ConfigError(f"{file} has a wrong number ({error}): save it again") from error


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no whole number")
    return value


def _from_config(name: str, config: dict[str, Any]) -> Model:
    kinds = " ".join(str(a) for a in config.get("architectures") or [])
    hidden, heads = _whole(config["hidden_size"]), _whole(config["num_attention_heads"])
    experts = _whole(config.get("num_experts") or 0)
    model = Model(
        name=name,
        hidden=hidden,
        n_layers=_whole(config["num_hidden_layers"]),
        n_heads=heads,
        n_kv_heads=_whole(config.get("num_key_value_heads") or heads),
        head_dim=_whole(config.get("head_dim") or hidden // heads),
        intermediate=_whole(config["moe_intermediate_size" if experts else "intermediate_size"]),
        vocab=_whole(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias="Qwen2" in kinds or bool(config.get("attention_bias")),
        qk_norm="Qwen3" in kinds,
        n_experts=experts,
        top_k=_whole(config["num_experts_per_tok"]) if experts else 0,
    )
    least = min(hidden, heads, model.n_layers, model.n_kv_heads, model.head_dim, model.vocab)
    if min(least, model.intermediate) < 1 or not 0 <= model.top_k <= experts:
        raise ValueError("sizes must be positive, and experts per token at most the experts")
    return model
