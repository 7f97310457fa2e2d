"""Room: how many tokens one sample may have, and what to do where a prompt leaves none.

The model's context and the whole cache both bound it. A sample that later fills its room ends as an
error of its own; a prompt that leaves no room for an answer is a mistake in the job.
"""

from dataclasses import dataclass

from plait.core.errors import CapacityError, ConfigError, RequestError
from plait.engines.protocol import ModelShape
from plait.envs.declared import Declared
from plait.jobs.sections import LimitsSection
from plait.jobs.spec import JobSpec
from plait.profiles.kv import worst_case_blocks
from plait.runtime.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bounds of one sample, in tokens."""

    max_context: int
    cache_tokens: int
    """What the cache holds if the sample has it for itself."""

    @property
    def tokens(self) -> int:
        """Tokens that a sample may have, its prompt included."""
        return min(self.max_context, self.cache_tokens)

    def worst_blocks(
        self,
        spec: JobSpec,
        declared: Declared,
        *,
        n_prompts: int,
        group_size: int,
        prompt_tokens: int,
        block_size: int,
    ) -> int:
        """Cache blocks of a batch of the job if every sample took all its turns to their limit."""
        said = declared.max_observation_tokens
        turns = spec.turns(declared.max_turns)
        return worst_case_blocks(
            n_prompts=n_prompts,
            group_size=group_size,
            prompt_tokens=prompt_tokens,
            max_new_tokens=min(turns * spec.limits.max_tokens + said, self.tokens),
            block_size=block_size,
            same_prompt=declared.same_prompt,
        )

    def check_limits(self, limits: LimitsSection) -> None:
        """ConfigError if no prompt at all could be answered."""
        if limits.max_tokens >= self.max_context:
            raise ConfigError(
                f"limits.max_tokens is {limits.max_tokens}, the model's context only "
                f"{self.max_context}: lower it"
            )

    def check_prompt(self, limits: LimitsSection, problem: int, n_tokens: int) -> None:
        """RequestError if the prompt of ``problem`` does not fit the context, CapacityError if not
        the cache."""
        if n_tokens == 0:
            raise RequestError(f"problem {problem} has an empty prompt: give it some text")
        fits = min(self.max_context - limits.max_tokens, limits.max_prompt_tokens)
        if n_tokens > fits:
            raise RequestError(
                f"the prompt of problem {problem} has {n_tokens} tokens, at most {fits} fit "
                f"(context {self.max_context}, limits.max_tokens {limits.max_tokens}, "
                f"limits.max_prompt_tokens {limits.max_prompt_tokens}): shorten it or change limits"
            )
        if n_tokens + limits.max_tokens > self.cache_tokens:
            raise CapacityError(
                f"a sample of problem {problem} may need {n_tokens + limits.max_tokens} tokens of "
                f"cache and there are {self.cache_tokens}: raise --kv-blocks or lower "
                "limits.max_tokens"
            )


def room_of(shape: ModelShape, settings: Settings) -> Room:
    """What one sample may have under resolved settings."""
    return Room(
        max_context=shape.max_context, cache_tokens=settings.worker_kv_blocks * settings.block_size
    )
