"""Dataset: prompts and answers from a file; the reward is the job's reward functions'.

Train rows come in a new order each epoch, which seed and epoch determine; held-out rows come in the
file's order. Every column goes to the reward functions, the answer also as ``answer``. A prompt may
be a text or a conversation (a list of ``{role, content}``).
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from plait.core.errors import ConfigError
from plait.envs.rows import Row, hold_out, key_of, read_rows
from plait.envs.single import Problem, SingleTurn
from plait.envs.split import EVAL, rng_of
from plait.envs.template import check_template, fill
from plait.models.tokenizer import Tokenizer

DEFAULT_EVAL_FRACTION = 0.1


class DatasetConfig(BaseModel):
    """``dataset``: a file and its columns."""

    model_config = ConfigDict(extra="forbid")
    file: str
    prompt: str = "prompt"
    """Column of the prompts."""
    answer: str | None = "answer"
    """Column of the answers; null: there are none."""
    system: str | None = None
    template: str | None = None
    """The prompt shown, with ``{column}`` for a column's value; default: the prompt column."""
    eval_file: str | None = None
    eval_fraction: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of different prompts held out where there is no ``eval_file``."""

    @model_validator(mode="after")
    def _one_way_to_hold_out(self) -> Self:
        if self.eval_file is not None and self.eval_fraction is not None:
            raise ValueError("give `eval_file` or `eval_fraction`, not both")
        return self


class DatasetSource(SingleTurn):
    """The rows of a file."""

    Config = DatasetConfig
    config: DatasetConfig

    def __init__(self, config: Mapping[str, Any], tokenizer: Tokenizer, seed: int) -> None:
        super().__init__(config, tokenizer, seed)
        given = self.config
        self.name = f"dataset/{Path(given.file).name}"
        self.system = given.system
        if given.template is not None:
            check_template(given.template, given.prompt, "environment dataset")
        columns = [c for c in (given.prompt, given.answer) if c is not None]
        rows = read_rows(Path(given.file), columns)
        self.n_dropped = 0
        """Train rows left out because their prompt is in ``eval_file``."""
        if given.eval_file is None:
            fraction = given.eval_fraction
            share = DEFAULT_EVAL_FRACTION if fraction is None else fraction
            self.train, self.held_out = hold_out(rows, given.prompt, share)
        else:
            self.held_out = read_rows(Path(given.eval_file), columns)
            held = {key_of(row, given.prompt) for row in self.held_out}
            self.train = [row for row in rows if key_of(row, given.prompt) not in held]
            self.n_dropped = len(rows) - len(self.train)
            if not self.train:
                raise ConfigError(f"every prompt of {given.file} is in {given.eval_file} too")
        self._order = functools.lru_cache(maxsize=2)(self._shuffled)
        for row in (*self.train[:1], *self.held_out[:1]):
            self._problem_of(row)

    def problem(self, index: int, split: str) -> Problem:
        """Row ``index``, epochs counted on."""
        if split == EVAL:
            if not self.held_out:
                raise ConfigError(f"{self.name} holds nothing out: set eval_fraction or eval_file")
            return self._problem_of(self.held_out[index % len(self.held_out)])
        epoch, place = divmod(index, len(self.train))
        return self._problem_of(self.train[self._order(epoch)[place]])

    def _shuffled(self, epoch: int) -> Sequence[int]:
        order = list(range(len(self.train)))
        rng_of(self.seed, "epoch", epoch).shuffle(order)
        return order

    def _problem_of(self, row: Row) -> Problem:
        given = self.config
        shown = row[given.prompt]
        answer = None if given.answer is None else row[given.answer]
        columns = {k: v for k, v in row.items() if k not in ("prompts", "completions", "prompt")}
        if given.answer is not None:
            columns["answer"] = answer
        text = None if answer is None else str(answer)
        if isinstance(shown, str):
            prompt = shown if given.template is None else fill(given.template, row)
            return Problem(prompt=prompt, answer=text, columns=columns)
        if not isinstance(shown, list) or not all(isinstance(m, dict) for m in shown):
            kind = type(shown).__name__
            raise ConfigError(
                f"{self.name}: column {given.prompt} holds {kind}: use text or a list of messages"
            )
        if not self.tokenizer.has_chat_template:
            raise ConfigError(
                f"{self.name} holds conversations, and the model has no chat template"
            )
        if given.system is not None or given.template is not None:
            raise ConfigError(f"{self.name}: system and template would do nothing to conversations")
        return Problem(prompt=key_of(row, given.prompt), messages=tuple(shown), columns=columns)
