"""Operations: the function-level requests that all work is made of.

The seven names are the Tinker primitives and PlexRL's function-level requests (PlexRL, unified LLM
service). Arrays travel as plain sequences here; an engine may turn them into whatever it likes.
Suffixes: N positions of one datum.

Mutations (everything but ``Sample`` and ``Forward``) carry ``seq``, the run's own counter from 1:
``(run_id, seq)`` is the idempotency key.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from plait.core.custom_losses import Loss
from plait.core.ids import OpId, RunId
from plait.core.runs import LoraSpec

MAX_TOPK = 20
"""Most likeliest tokens that a sample may ask for at each position (Tinker's limit)."""

MAX_NAMED = 1 << 17
"""Most tokens of its own choice that a sample may have scored in its prompt: as many log-probs as
the ``MAX_TOPK`` likeliest at each of 6,553 tokens."""

Ranked = tuple[tuple[int, float], ...]
"""The likeliest tokens at one position with their log-probs, best first."""
Alternatives = tuple[tuple[int, float], ...]
"""Tokens drawn for one position with their log-probs, in the order of the draws."""


class StopReason(StrEnum):
    """Why a sample ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn. ``top_k=0`` and ``top_p=1`` are off; ``temperature=0`` is greedy.

    ``stop`` strings end a sample when its decoded text contains one; the tokens that spell it are
    kept. ``stop_tokens`` end it on that id, which is kept too; so do the model's own end tokens
    unless ``ignore_eos``. ``seed`` fixes the draw of every sample of the request: sample i of n
    differs from sample j, and the set is reproducible.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Draw ``n`` continuations of one prompt from the run's policy at ``version``.

    ``version=None`` samples the base model with no adapter.
    """

    op_id: OpId
    run_id: RunId
    version: int | None
    prompt: tuple[int, ...]
    n: int = 1
    params: SamplingParams
    first_index: int = 0
    """Index of the first sample: one seed with ``first_index`` 0..n-1 equals one request of n."""
    prompt_logprobs: bool = False
    """Score every token of the prompt but the first."""
    topk_logprobs: int = 0
    """So many of the likeliest tokens at each drawn token, and at each of the prompt that
    ``prompt_logprobs`` scores."""
    prompt_targets: tuple[tuple[int, ...], ...] = ()
    """Tokens to be scored in place of the prompt's: a row, which may be empty, for each but the
    first. At least one token and at most ``MAX_NAMED`` in all, if there are rows."""
    prompt_draws: int = 0
    """So many tokens, at most ``MAX_TOPK``, to be drawn in place of each of the prompt's but the
    first: independently, at the sample's temperature, whatever its top-k and top-p."""
    watched: bool = False
    """Somebody wants to see its tokens as they come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One continuation: tokens and the log-prob of each under the model's full distribution
    at temperature 1 (as Tinker and vLLM report them). ``topk`` has an entry for each token if asked
    for."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: StopReason
    version: int | None
    topk: tuple[Ranked, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleResult:
    """The continuations of a ``Sample``, in index order.

    If asked for: ``prompt_logprobs[i]`` is that of prompt token i + 1, ``prompt_topk[i]`` what was
    likeliest in its place, ``prompt_targets[i]`` the log-probs of the tokens that the sample names
    there, ``prompt_draws[i]`` what was drawn there. All are empty where an abort came before the
    last of the prompt that is asked about.
    """

    samples: tuple[Sampled, ...]
    prompt_logprobs: tuple[float, ...] = ()
    prompt_topk: tuple[Ranked, ...] = ()
    prompt_targets: tuple[tuple[float, ...], ...] = ()
    prompt_draws: tuple[Alternatives, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Datum:
    """One training sequence of N positions: ``input_tokens[i]`` predicts ``target_tokens[i]``.

    ``mask[i]`` says whether position i is scored; ``inputs`` holds per-position loss inputs, each
    of length N (``core.losses.INPUTS``), read only where the mask is true. Soft targets are K
    tokens at each position, ``(N, K)``; their one input is ``weights``, ``(N, K)`` too.
    """

    input_tokens: Sequence[int]
    target_tokens: Sequence[int] | Sequence[Sequence[int]]
    mask: Sequence[bool]
    inputs: dict[str, Sequence[float] | Sequence[Sequence[float]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamParams:
    """One AdamW step. ``grad_clip_norm=0`` is off."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Make a run's adapter (version 0) and empty optimizer state."""

    op_id: OpId
    run_id: RunId
    seq: int
    lora: LoraSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Log-probs of the target tokens where the mask is true. ``adapter=False`` is the reference."""

    op_id: OpId
    run_id: RunId
    data: tuple[Datum, ...]
    adapter: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBackward:
    """Add the gradient of the token-summed loss to what the run has accumulated."""

    op_id: OpId
    run_id: RunId
    seq: int
    data: tuple[Datum, ...]
    loss: Loss
    loss_config: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimStep:
    """Apply and clear the accumulated gradient; the run's version rises by one."""

    op_id: OpId
    run_id: RunId
    seq: int
    adam: AdamParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Make the run's committed ``version`` samplable."""

    op_id: OpId
    run_id: RunId
    seq: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Keep the run's current state (adapter, and optimizer if asked) under ``path``."""

    op_id: OpId
    run_id: RunId
    seq: int
    path: str
    optimizer: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Replace the run's state with what lies under ``path``."""

    op_id: OpId
    run_id: RunId
    seq: int
    path: str
    optimizer: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardResult:
    """Per datum: log-probs at the masked positions, in order; of soft targets K at each.
    ``metrics`` keys end in their reduction (``loss:sum``)."""

    logprobs: tuple[tuple[float, ...], ...]
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What an ``OptimStep`` did: the version it made and its metrics (``grad_norm:mean`` …)."""

    version: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Result of an operation that returns nothing but where its output lies."""

    path: str = ""


TrainOp = Create | Forward | ForwardBackward | OptimStep | Save | Load
"""What a training engine carries out."""
Mutation = Create | ForwardBackward | OptimStep | Publish | Save | Load
"""What must be durable before it is acknowledged."""
Operation = Sample | Forward | Mutation
Result = SampleResult | ForwardResult | StepResult | Done
