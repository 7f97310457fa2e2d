"""Judge: a language model behind an OpenAI-compatible URL that gives each completion 0 to 1.

The template asks, the judge's text must hold a number; the last one counts (judges reason first).
No answer in time, a refused request, or no number from 0 to 1 is an error of that sample, never a
reward of 0. Nothing is retried: a retry would hide a judge that is too slow for the job.
"""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from plait.core.errors import ConfigError
from plait.core.text import told, writable
from plait.rewards.outcome import RewardOutcome, failed
from plait.sections import read_section

NUMBER = re.compile(r"(?<![\w.])-?(?:\d+(?:\.\d+)?|\.\d+)(?![\w]|\.\d)")
FIELD = re.compile(r"\{(\w+)\}")
DEFAULT_PROMPT = (
    "Task:\n{prompt}\n\nReference answer:\n{answer}\n\nResponse to judge:\n{completion}\n\n"
    "How correct is the response? Reply with one number from 0 (wrong) to 1 (right)."
)
DEADLINE_S = 60.0


class JudgeConfig(BaseModel):
    """The ``judge`` reward of a job file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    base_url: str
    model: str
    prompt: str = DEFAULT_PROMPT
    """``{prompt}``, ``{completion}`` and any column by its name."""
    system: str | None = None
    api_key_env: str | None = None
    """Environment variable that holds the key; a key never stands in a job file."""
    max_tokens: Annotated[int, Field(ge=1)] = 64
    temperature: Annotated[float, Field(ge=0)] = 0.0
    concurrency: Annotated[int, Field(ge=1, le=256)] = 8

    @field_validator("prompt")
    @classmethod
    def _shows_completion(cls, value: str) -> str:
        if "completion" not in FIELD.findall(value):
            raise ValueError("must contain {completion}: the judge would not see the response")
        return value


class Judge:
    """One judge; use as ``async with``, on one event loop."""

    def __init__(self, *, deadline_s: float = DEADLINE_S, **keys: Any) -> None:
        """``keys`` are ``JudgeConfig``'s; ConfigError if one is wrong."""
        config = read_section(JudgeConfig, keys, "reward judge")
        try:
            from openai import AsyncOpenAI
        except ModuleNotFoundError as error:
            raise ConfigError("the judge needs openai: pip install 'plait[judge]'") from error
        self._config = config
        self._deadline_s = deadline_s
        self._client = AsyncOpenAI(
            base_url=config.base_url, api_key=_key(config.api_key_env), max_retries=0
        )
        self._slots = asyncio.Semaphore(config.concurrency)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close connections."""
        await self._client.close()

    async def score(
        self,
        prompts: Sequence[Any],
        completions: Sequence[str],
        columns: Mapping[str, Sequence[Any]],
    ) -> list[RewardOutcome]:
        """One outcome per completion; the deadline bounds each, the wait for its turn included."""
        rows = [
            {key: values[i] for key, values in columns.items()}
            | {"prompt": prompts[i], "completion": completion}
            for i, completion in enumerate(completions)
        ]
        async with asyncio.TaskGroup() as tasks:
            verdicts = [tasks.create_task(self._one(row)) for row in rows]
        return [verdict.result() for verdict in verdicts]

    async def _one(self, row: Mapping[str, Any]) -> RewardOutcome:
        from openai import OpenAIError

        missing = [name for name in FIELD.findall(self._config.prompt) if name not in row]
        if missing:
            return _error(f"the judge's prompt names {{{missing[0]}}}, and there is no such column")
        try:
            async with asyncio.timeout(self._deadline_s), self._slots:
                return read_verdict(await self._ask(row))
        except TimeoutError:
            return _error(f"the judge did not answer within {self._deadline_s:g} s")
        except OpenAIError as error:
            return _error(f"the judge at {self._config.base_url} failed: {error}")
        except Exception as error:  # a column's own __str__, or a server that answers anything
            return _error(f"asking the judge at {self._config.base_url} failed: {told(error)}")

    async def _ask(self, row: Mapping[str, Any]) -> str:
        config = self._config
        text = writable(FIELD.sub(lambda found: str(row[found[1]]), config.prompt))
        messages = [] if config.system is None else [{"role": "system", "content": config.system}]
        reply = await self._client.chat.completions.create(
            model=config.model,
            messages=[*messages, {"role": "user", "content": text}],
            max_tokens=config.max_tokens,
            temperature=config.temperature,
        )
        return str(reply.choices[0].message.content or "") if reply.choices else ""


def read_verdict(text: str) -> RewardOutcome:
    """The last number of a judge's text, if it is one from 0 to 1."""
    numbers = NUMBER.findall(text)
    if not numbers:
        return _error(f"the judge gave no number: {text[:200]!r}")
    value = float(numbers[-1])
    if not 0.0 <= value <= 1.0:
        return _error(f"the judge gave {value:g}, not a number from 0 to 1")
    return RewardOutcome(value=value)


def _error(why: str) -> RewardOutcome:
    return failed(why, 1)[0]


def _key(variable: str | None) -> str:
    if variable is None:
        return "none"  # local servers want a key to be there and do not read it
    if not (key := os.environ.get(variable)):
        raise ConfigError(f"the judge's api_key_env {variable} is not set: export it first")
    return key
