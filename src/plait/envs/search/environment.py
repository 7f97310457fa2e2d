"""Environment: one question for one sample: search, read, answer.

The policy's tokens stay as they are; results are encoded apart and appended. Documents are cut to a
budget drawn from (seed, split, index, call, query), so results vary in length and are the same
whenever the same policy says the same. After the last call the result ends in ``<answer>``: all
that is left to say. What the tool fails to do is raised (``EnvironmentFailure``), never scored.
"""

import hashlib
import random
from collections.abc import Mapping
from typing import Any

from plait.envs.protocol import Turn
from plait.envs.search.calls import Docs, Line
from plait.envs.search.config import SearchConfig
from plait.envs.search.items import Item
from plait.envs.search.scoring import score
from plait.envs.search.script import (
    CLOSE_RESULT,
    OPEN_ANSWER,
    OPEN_RESULT,
    STOP,
    Answer,
    Ask,
    parse,
    prompt_tokens,
)
from plait.models.tokenizer import Tokenizer

MIN_DOC_TOKENS = 8
"""A document of which less fits is left out: it would not even show what it is about."""


class SearchEnv:
    """One sample's search. ``draw``: what its random lengths are drawn from."""

    def __init__(
        self, item: Item, config: SearchConfig, tokenizer: Tokenizer, line: Line, draw: str
    ) -> None:
        self.item = item
        self._config = config
        self._tokenizer = tokenizer
        self._line = line
        self._draw = draw
        self._n_calls = 0
        self._shown: set[str] = set()
        self._opened = ""

    async def start(self) -> tuple[int, ...]:
        """Rules, examples and the question, once the tool is ready to be asked.

        Waiting here keeps the first start, which builds an index, out of the rollout's deadline.
        """
        await self._line.ready()
        config = self._config
        return prompt_tokens(self._tokenizer, self.item.question, config.prompt, config.examples)

    async def step(self, tokens: tuple[int, ...]) -> Turn:
        """Answer a search with documents; score anything else."""
        text = self._opened + self._tokenizer.decode(tokens)
        move = parse(text)
        if isinstance(move, Ask) and self._n_calls < self._config.max_calls:
            return await self._result(move.query)
        self._line.close()
        said = move.text if isinstance(move, Answer) else None
        result = score(
            self.item,
            said,
            n_calls=self._n_calls,
            shown=self._shown,
            shaping=self._config.shaping,
        )
        told = f"answered {said!r}" if said is not None else "gave no answer"
        why = (
            f"{told}, right is {self.item.answers[0]!r}; {self._n_calls} searches found "
            f"{result.found:.0%} of what is needed"
        )
        info = {
            "why": why,
            "calls": self._n_calls,
            "answer_f1": result.answer,
            "found": result.found,
            "exact": result.exact,
        }
        return Turn(reward=result.reward, info=info)

    def columns(self) -> Mapping[str, Any]:
        """The answers and what was asked."""
        return {
            "question": self.item.question,
            "answer": self.item.answers[0],
            "answers": self.item.answers,
            "kind": self.item.kind,
        }

    @property
    def stop(self) -> tuple[str, ...]:
        return STOP

    def close(self) -> None:
        """The sample has ended, whoever ended it. Again: no effect."""
        self._line.close()

    async def _result(self, query: str) -> Turn:
        docs = await self._line.ask(query)
        self._n_calls += 1
        shown, tokens = self._cut(docs, self._budget(query))
        self._shown.update(shown)
        self._opened = OPEN_ANSWER if self._n_calls == self._config.max_calls else ""
        encode = self._tokenizer.encode
        return Turn(
            tokens=(*encode(OPEN_RESULT), *tokens, *encode(CLOSE_RESULT + self._opened)),
            done=False,
            info={"query": query, "calls": self._n_calls, "documents": tuple(shown)},
        )

    def _budget(self, query: str) -> int:
        return random.Random(f"{self._draw}/{self._n_calls}/{query}").randint(
            *self._config.result_tokens
        )

    def _cut(self, docs: Docs, budget: int) -> tuple[list[str], list[int]]:
        """Ids of the documents that fit, at least in part, and their tokens."""
        shown: list[str] = []
        tokens: list[int] = []
        for doc in docs:
            room = budget - len(tokens)
            if room < MIN_DOC_TOKENS:
                break
            shown.append(str(doc["id"]))
            tokens += self._tokenizer.encode(("\n" if tokens else "") + str(doc["text"]))[:room]
        return shown, tokens


class FixedEnv(SearchEnv):
    """The same work whatever the policy says: a load for benchmarks.

    Every chunk is a query, results have exactly the drawn length (documents repeat), the chunk
    after ``fixed_calls`` calls is the last. The reward is a hash of all that was sampled, so every
    group has a signal and the training side has its usual work; it measures nothing.
    """

    _digest = b""

    async def step(self, tokens: tuple[int, ...]) -> Turn:
        """Search for the chunk, whatever it says."""
        self._digest = hashlib.sha256(self._digest + repr(tokens).encode()).digest()
        if self._n_calls == self._config.fixed_calls:
            self._line.close()
            info = {"why": "fixed calls: the reward is a hash", "calls": self._n_calls}
            return Turn(reward=self._digest[0] / 255, info=info)
        text = " ".join(self._tokenizer.decode(tokens).split())
        docs = await self._line.ask(text or self.item.question)
        budget = random.Random(f"{self._draw}/{self._n_calls}").randint(*self._config.result_tokens)
        self._n_calls += 1
        body: list[int] = []
        while len(body) < budget:
            body += self._cut(docs, max(MIN_DOC_TOKENS, budget - len(body)))[1]
        encode = self._tokenizer.encode
        return Turn(
            tokens=(*encode(OPEN_RESULT), *body[:budget], *encode(CLOSE_RESULT)),
            done=False,
            info={"query": text, "calls": self._n_calls},
        )

    @property
    def stop(self) -> tuple[str, ...]:
        return ()
