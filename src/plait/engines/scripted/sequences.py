"""What the rollout scheduler keeps per request: a group (one ``Sample``) and its sequences.

The full blocks of the prompt belong to the group and are computed once; each sequence computes the
rest of the prompt and its own tokens. The last prompt token is always a sequence's own, since its
logits start the sample.
"""

from dataclasses import dataclass, field

from plait.core.operations import Alternatives, Ranked, Sample, Sampled, SampleResult, StopReason
from plait.engines.scripted.policy import Adapter


@dataclass(slots=True, eq=False, kw_only=True)
class Group:
    """One ``Sample`` operation in flight."""

    op: Sample
    adapter: Adapter | None
    block_size: int
    max_new: int
    """Tokens to draw at most: the request's limit, or what the context leaves."""
    shared_done: int = 0
    sequences: list["Sequence"] = field(default_factory=list)
    prompt_logprobs: tuple[float, ...] = ()
    prompt_topk: tuple[Ranked, ...] = ()
    prompt_targets: tuple[tuple[float, ...], ...] = ()
    prompt_draws: tuple[Alternatives, ...] = ()
    n_scored: int = 0
    """Rows of the prompt that are scored: all, or none yet."""

    @property
    def shared_tokens(self) -> int:
        """Prompt tokens whose blocks all sequences share."""
        return (len(self.op.prompt) - 1) // self.block_size * self.block_size

    @property
    def shared_blocks(self) -> int:
        return self.shared_tokens // self.block_size

    @property
    def worst_blocks(self) -> int:
        """Blocks that one sequence alone may come to need; its last token is never cached."""
        own = len(self.op.prompt) - self.shared_tokens + self.max_new - 1
        return self.shared_blocks + blocks_for(own, self.block_size)

    @property
    def done(self) -> bool:
        return all(sequence.stop_reason is not None for sequence in self.sequences)

    def result(self) -> SampleResult:
        """The continuations in index order; unfinished ones count as aborted."""
        samples = tuple(
            Sampled(
                tokens=tuple(sequence.tokens),
                logprobs=tuple(sequence.logprobs),
                stop_reason=sequence.stop_reason or StopReason.ABORT,
                version=self.op.version,
                topk=tuple(sequence.topk),
            )
            for sequence in self.sequences
        )
        return SampleResult(
            samples=samples,
            prompt_logprobs=self.prompt_logprobs,
            prompt_topk=self.prompt_topk,
            prompt_targets=self.prompt_targets,
            prompt_draws=self.prompt_draws,
        )


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """One continuation being drawn."""

    group: Group
    index: int
    computed: int = 0
    """Own tokens that are in the cache."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    topk: list[Ranked] = field(default_factory=list)
    stop_reason: StopReason | None = None

    @property
    def own_known(self) -> int:
        """Own tokens so far, sampled ones included."""
        return len(self.group.op.prompt) - self.group.shared_tokens + len(self.tokens)

    @property
    def pending(self) -> int:
        """Tokens to compute before the next one can be drawn, shared ones included."""
        shared = self.group.shared_tokens - self.group.shared_done
        return shared + self.own_known - self.computed

    @property
    def last_token(self) -> int:
        return self.tokens[-1] if self.tokens else self.group.op.prompt[-1]


def blocks_for(n_tokens: int, block_size: int) -> int:
    """Blocks that hold ``n_tokens``."""
    return -(-n_tokens // block_size)
