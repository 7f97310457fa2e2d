"""Tokenizer: text to ids and back for a model directory, without torch or transformers.

Reads ``tokenizer.json``, ``tokenizer_config.json`` (chat template) and ``generation_config.json`` /
``config.json`` (end tokens). Conversations are turned into tokens once and never re-tokenised.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox
from tokenizers import Tokenizer as _Fast

from plait.core.errors import ModelError


class Tokenizer:
    """A model's tokenizer and chat template."""

    def __init__(self, model_dir: str | Path) -> None:
        """Read the tokenizer of ``model_dir``; ModelError if it has none."""
        self.model_dir = Path(model_dir)
        file = self.model_dir / "tokenizer.json"
        if not file.is_file():
            raise ModelError(f"{model_dir} has no tokenizer.json: give a Hugging Face directory")
        self._fast = _Fast.from_file(str(file))
        config = _read_json(self.model_dir / "tokenizer_config.json")
        self.eos_ids = self._end_tokens(config)
        self._template = _template(self.model_dir, config)
        self._specials = {
            k: v if isinstance(v, str) else v.get("content", "")
            for k, v in config.items()
            if k in ("bos_token", "eos_token", "pad_token", "unk_token") and v
        }

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    @property
    def vocab_size(self) -> int:
        return int(self._fast.get_vocab_size())

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of plain text; no special tokens are added."""
        return tuple(self._fast.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of ids."""
        return str(self._fast.decode(list(ids), skip_special_tokens=skip_special))

    def chat(
        self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """Ids of a conversation by the model's chat template; ModelError if it has none."""
        return self.encode(self.render(messages, add_generation_prompt=add_generation_prompt))

    def render(
        self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool = True
    ) -> str:
        """Text of a conversation by the model's chat template; ModelError if it has none."""
        if self._template is None:
            raise ModelError(f"{self.model_dir.name} has no chat template: use a plain-text prompt")
        return self._template.render(
            messages=list(messages), add_generation_prompt=add_generation_prompt, **self._specials
        )

    def prompt(self, text: str, *, system: str | None = None) -> tuple[int, ...]:
        """Ids of a user's message: by the chat template if there is one, else the plain text."""
        if self._template is None:
            return self.encode(text if system is None else f"{system}\n{text}")
        messages = [] if system is None else [{"role": "system", "content": system}]
        return self.chat([*messages, {"role": "user", "content": text}])

    def _end_tokens(self, config: dict[str, Any]) -> tuple[int, ...]:
        ids: set[int] = set()
        for name in ("generation_config.json", "config.json"):
            value = _read_json(self.model_dir / name).get("eos_token_id")
            ids.update([value] if isinstance(value, int) else value or [])
        token = config.get("eos_token")
        if isinstance(token, dict):
            token = token.get("content")
        if token is not None and (found := self._fast.token_to_id(token)) is not None:
            ids.add(found)
        return tuple(sorted(ids))


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = json.loads(path.read_text())
    return value if isinstance(value, dict) else {}


def _template(model_dir: Path, config: dict[str, Any]) -> jinja2.Template | None:
    file = model_dir / "chat_template.jinja"
    text = file.read_text() if file.is_file() else config.get("chat_template")
    if not isinstance(text, str):
        return None
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.globals["raise_exception"] = _raise
    return env.from_string(text)


def _raise(message: str) -> None:
    raise ModelError(f"the chat template refused the conversation: {message}")
