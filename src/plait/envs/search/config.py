"""Config: the keys that ``name: search`` takes."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from plait.envs.search.items import KINDS, Kind
from plait.envs.tools.geo import MIN_PASSAGES

MAX_RESULT_TOKENS = 2048

Budget = Annotated[int, Field(ge=8, le=MAX_RESULT_TOKENS)]


class SearchConfig(BaseModel):
    """``search``: the corpus, the calls, and what they cost."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    passages: Annotated[int, Field(ge=MIN_PASSAGES, le=34_000)] = 12_000
    """Size of the corpus: countries, states, continents, then the largest cities."""
    questions: Annotated[tuple[Kind, ...], Field(min_length=1)] = KINDS
    prompt: Literal["plain", "chat"] = "plain"
    """``plain``: a document of worked examples to be continued, which a small model can follow;
    ``chat``: the same as a conversation in the model's template."""
    examples: Annotated[int, Field(ge=0, le=2)] = 2
    """Worked examples in the prompt; with 0 it is the rules and the question alone."""
    max_calls: Annotated[int, Field(ge=1, le=16)] = 5
    top_k: Annotated[int, Field(ge=1, le=10)] = 2
    result_tokens: tuple[Budget, Budget] = (48, 128)
    """Least and most tokens of documents per call; drawn anew for every query."""
    calls: Literal["sample", "step", "group"] = "sample"
    """``sample``: each call goes at once. ``step``, ``group``: blocked; all samples of the step (of
    the problem) are answered as one batch once each has asked or ended."""
    patience_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """Longest that a blocked batch waits for a straggler after its first call."""
    latency_s: Annotated[float, Field(ge=0, le=600)] = 0.0
    """Declared extra time of each call (of each batch where calls are blocked)."""
    deadline_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """Longest wait for the tool's reply, ``latency_s`` not counted."""
    shaping: Annotated[float, Field(ge=0, lt=1)] = 0.4
    """Share of the reward for the way there (``scoring``); 0: the answer alone counts."""
    fixed_calls: Annotated[int, Field(ge=1, le=16)] | None = None
    """For benchmarks: every sampled chunk is a query whatever it says, the chunk after so many
    calls is the last, results have exactly the drawn length, the reward is a hash."""

    @model_validator(mode="after")
    def _budget_is_a_range(self) -> Self:
        if self.result_tokens[0] > self.result_tokens[1]:
            raise ValueError("`result_tokens` must be [least, most]")
        return self

    @property
    def max_turns(self) -> int:
        """Turns of the policy: each call, and the answer."""
        return (self.fixed_calls or self.max_calls) + 1
