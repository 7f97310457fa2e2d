"""Sequence: one sample in the making, and the request that it belongs to.

Owns what a sample has drawn and when it is over; where its keys and values lie is noted here but
decided in ``schedule``. ``tokens`` is prompt and draws: all that is needed to go on elsewhere.
"""

from dataclasses import dataclass, field

from plait.core.ids import OpId
from plait.core.operations import Ranked, Sample, Sampled, SampleResult, StopReason
from plait.engines.torch.blocks import Policy
from plait.engines.torch.prompted import Prompted, prompted
from plait.engines.torch.stops import StopScan


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """A ``Sample`` operation and its sequences, in index order. The first of these scores what is
    asked of the prompt."""

    op: Sample
    policy: Policy
    ends: frozenset[int]
    sequences: list["Sequence"] = field(default_factory=list)
    prompt: Prompted = field(init=False)
    failure: str = ""

    def __post_init__(self) -> None:
        self.prompt = prompted(self.op)

    @property
    def is_over(self) -> bool:
        return all(s.reason is not None for s in self.sequences)

    def result(self) -> SampleResult:
        samples, prompt = tuple(s.sampled() for s in self.sequences), self.prompt
        if not prompt.is_done:
            return SampleResult(samples=samples)
        return SampleResult(
            samples=samples,
            prompt_logprobs=tuple(prompt.logprobs),
            prompt_topk=tuple(prompt.topk),
            prompt_targets=tuple(prompt.targets),
            prompt_draws=tuple(prompt.draws),
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """Sample ``index`` of a request. ``n_cached`` of its tokens have their keys and values in
    ``blocks``; ``chain`` is where the published part of these blocks ends."""

    request: Request
    index: int
    arrival: int
    group: int
    """Equal for sequences of equal policy and prompt: these share one prefill."""
    stream: int
    """Start of the sample's own random sequence."""
    tokens: list[int]
    n_prompt: int
    max_tokens: int
    scan: StopScan | None
    logprobs: list[float] = field(default_factory=list)
    topk: list[Ranked] = field(default_factory=list)
    reason: StopReason | None = None
    blocks: list[int] = field(default_factory=list)
    n_cached: int = 0
    n_published: int = 0
    chain: int = 0

    @property
    def policy(self) -> Policy:
        return self.request.policy

    @property
    def op_id(self) -> OpId:
        return self.request.op.op_id

    @property
    def n_drawn(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def n_todo(self) -> int:
        """Tokens whose keys and values are still to be computed; one of them while decoding."""
        return len(self.tokens) - self.n_cached

    @property
    def n_most(self) -> int:
        """Most keys and values that the sample can come to hold: its last token needs none."""
        return self.n_prompt + self.max_tokens - 1

    @property
    def scores(self) -> bool:
        """It computes prompt tokens for the sake of their logits, though a cache may know them."""
        return not self.request.prompt.is_done and self.request.sequences[0] is self

    @property
    def findable(self) -> list[int]:
        """Tokens whose keys and values may come from a cache, but for the last one."""
        return self.tokens[: self.request.prompt.n_scored + 1] if self.scores else self.tokens

    def draw(self, token: int, logprob: float, topk: Ranked = ()) -> None:
        """Take the next token and see whether it ends the sample."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.request.op.topk_logprobs:
            self.topk.append(topk)
        stopped = token in self.request.ends or (self.scan is not None and self.scan.push(token))
        if stopped:
            self.reason = StopReason.STOP
        elif len(self.tokens) - self.n_prompt >= self.max_tokens:
            self.reason = StopReason.LENGTH

    def sampled(self) -> Sampled:
        return Sampled(
            tokens=tuple(self.tokens[self.n_prompt :]),
            logprobs=tuple(self.logprobs),
            stop_reason=self.reason or StopReason.ABORT,
            version=self.policy[1],
            topk=tuple(self.topk),
        )
