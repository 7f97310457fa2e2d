"""Reasoning: any reasoning-gym dataset by name, scored by its own ``score_answer``.

The answer is taken from the reply as ``answer`` says (``answers``). A scorer that raises or hangs
is an error of that sample. Item ``i`` of a split is the first of its own ``DRAWS`` items of a chunk
that is on that side, or else of the next such chunk. A chunk is a dataset of its own seed and of
bounded size, because some datasets make all their items at once, and others read files.
"""

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from plait.core.errors import ConfigError, EnvironmentFailure, RewardError
from plait.envs.answers import AnswerMode, extract_answer
from plait.envs.gym_data import SCORE, make_dataset
from plait.envs.single import Problem, SingleTurn
from plait.envs.split import EVAL_SHARE, draw_on_side, unit_hash
from plait.envs.template import check_template, fill
from plait.models.tokenizer import Tokenizer
from plait.rewards.pool import RewardPool

CHUNK = 256
"""Items of a split that share a chunk: a run seldom needs a new one."""
DRAWS = 8
"""Five draws find a held-out item on average; 256 · 8 items at once take two seconds at worst."""
KEPT_CHUNKS = 8
"""A step's items lie in one or two chunks for training and one or two for evaluation."""


class ReasoningConfig(BaseModel):
    """``reasoning-gym``: which dataset, and how its items are shown and answers read."""

    model_config = ConfigDict(extra="forbid")
    dataset: str
    params: dict[str, Any] = {}
    """The dataset's own parameters (``min_digits`` …)."""
    template: str = "{question}"
    system: str | None = None
    answer: AnswerMode = "auto"
    eval_share: Annotated[float, Field(gt=0, lt=1)] = EVAL_SHARE
    score_deadline_s: Annotated[float, Field(gt=0, le=600)] = 10.0


class ReasoningGym(SingleTurn):
    """All items of one dataset with one set of parameters."""

    Config = ReasoningConfig
    config: ReasoningConfig

    def __init__(self, config: Mapping[str, Any], tokenizer: Tokenizer, seed: int) -> None:
        super().__init__(config, tokenizer, seed)
        check_template(self.config.template, "question", "environment reasoning-gym")
        self.name = f"reasoning-gym/{self.config.dataset}"
        self.system = self.config.system
        try:
            self._params_json = json.dumps(self.config.params, sort_keys=True)
        except TypeError as error:
            raise ConfigError(f"environment reasoning-gym: params: {error}") from error
        self._chunks: OrderedDict[tuple[int, int], Any] = OrderedDict()
        self._lock = threading.Lock()
        self._chunk(0, 0)
        self._pool = RewardPool(1)

    def problem(self, index: int, split: str) -> Problem:
        """The index-th item of ``split``."""
        place = index % CHUNK * DRAWS
        entry = draw_on_side(
            lambda draw: self._chunk(index // CHUNK, draw // DRAWS)[place + draw % DRAWS],
            lambda item: str(item["question"]),
            split,
            self.config.eval_share,
        )
        answer = entry["answer"]
        return Problem(
            prompt=fill(self.config.template, {"question": entry["question"]}),
            answer=None if answer is None else str(answer),
            columns={"question": entry["question"], "metadata": entry.get("metadata", {})},
            data=entry,
        )

    async def load(self, index: int, split: str) -> Problem:
        """Some items are puzzles that take long to make: not on the event loop."""
        return await asyncio.to_thread(self._load, index, split)

    async def grade(self, problem: Problem, completion: str) -> float | None:
        """The dataset's score, from a process that is killed if it takes too long."""
        answer = extract_answer(completion, self.config.answer)
        args = (self.config.dataset, self._params_json, problem.data, answer)
        try:
            reward = await self._pool.call(SCORE, args, self.config.score_deadline_s)
        except RewardError as error:
            raise EnvironmentFailure(f"scoring with {self.name} failed: {error}") from error
        return float(reward)

    async def aclose(self) -> None:
        """End the scoring process."""
        await self._pool.aclose()

    def _load(self, index: int, split: str) -> Problem:
        with self._lock:
            return self.kept(index, split)

    def _chunk(self, chunk: int, again: int) -> Any:
        key = (chunk, again)
        if key not in self._chunks:
            seed = int(unit_hash(f"{self.seed}/{chunk}/{again}") * 2**31)
            self._chunks[key] = make_dataset(
                self.config.dataset, self.config.params, seed=seed, size=CHUNK * DRAWS
            )
            if len(self._chunks) > KEPT_CHUNKS:
                self._chunks.popitem(last=False)
        return self._chunks[key]
