"""The engine contract: what a worker process may ask of the engine it hosts.

Engines hold no policy and no clock of their own. They return control after every forward step with
a token count, so that the worker can take a new share of the machine there (JigsawRL §sub-stage).
One contract suite (tests/contract) runs against every engine.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from plait.core.custom_losses import Loss
from plait.core.errors import PlaitError
from plait.core.ids import OpId, RunId
from plait.core.operations import (
    AdamParams,
    Datum,
    ForwardBackward,
    ForwardResult,
    Sample,
    SampleResult,
    StepResult,
)
from plait.core.plan import Keep
from plait.core.runs import TARGETS, LoraSpec

if TYPE_CHECKING:
    from plait.engines.moved import Moved


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Numbers of a base model that policies and estimates need."""

    name: str
    vocab_size: int
    max_context: int
    n_layers: int
    n_kv_heads: int
    head_dim: int
    hidden_size: int
    n_params: int
    kv_bytes_per_token: int
    linear_layers: tuple[str, ...] = TARGETS
    """Names that an adapter's targets are chosen from."""
    by_transformers: bool = False
    """The embedded engine has no forward of its own for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardStep:
    """What one forward step of a rollout engine did."""

    n_tokens: int
    n_prefill_tokens: int
    n_running: int
    n_waiting: int
    n_preempted: int
    kv_blocks_used: int
    tokens_by_run: dict[RunId, int]
    kv_blocks_by_run: dict[RunId, int]
    finished: tuple[tuple[OpId, SampleResult], ...]
    failed: tuple[tuple[OpId, PlaitError], ...] = ()
    """Operations that ended in an error of their own (NotFinite: the logits), with it."""
    short_of_blocks: frozenset[RunId] = frozenset()
    """Runs whose samples queued or gave way in this step for want of cache blocks."""
    kv_blocks_idle: int = 0
    """Blocks that nobody holds, with content that may serve again."""
    n_evicted: int = 0
    """Such blocks that were given up in this step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainStep:
    """What one micro-batch of a training engine did."""

    n_tokens: int
    tokens_by_run: dict[RunId, int]
    forward_only: bool


class RolloutEngine(Protocol):
    """Continuous batching over many adapters. Not thread-safe: one owner calls it."""

    shape: ModelShape

    def load_adapter(self, run_id: RunId, version: int, path: str) -> None:
        """Read PEFT safetensors under ``path``; ModelError if a module does not match."""

    def drop_adapter(self, run_id: RunId, version: int) -> None:
        """Forget an adapter once its last sample has ended; unknown ones are ignored."""

    def add(self, op: Sample) -> None:
        """Queue a sample; RequestError on bad ids or a version that is not loaded, CapacityError if
        it can never fit."""

    def abort(self, op_ids: Sequence[OpId]) -> tuple[tuple[OpId, SampleResult], ...]:
        """End samples now; what they had drawn comes back with ``StopReason.ABORT``."""

    def peek(self, op_id: OpId) -> SampleResult | None:
        """What a sample has drawn so far, as ``abort`` would return it; None if it is not in
        flight."""

    def export_sample(self, op_id: OpId, *, kv: bool) -> "Moved":
        """Take a request out, to go on elsewhere with the same tokens; RequestError if it is not
        in flight. ``kv`` copies its keys and values too, if the engine has any."""

    def import_sample(self, moved: "Moved") -> None:
        """Go on with another engine's request; refused as in ``add``, and with ModelError if the
        base model is not the one that it was begun with."""

    def mark_prefix(
        self, run_id: RunId, version: int | None, tokens: Sequence[int], keep: Keep
    ) -> None:
        """A hint: how soon what is cached of ``tokens`` may be given up."""

    def set_paused(self, run_id: RunId, paused: bool) -> None:
        """Keep a run's samples out of forward steps without touching the others."""

    def resize_kv(self, n_blocks: int) -> None:
        """Change the cache's size; running samples are kept or preempted, never lost."""

    def has_work(self) -> bool:
        """True while a forward step would do something."""

    def step(self) -> ForwardStep:
        """One forward step over whatever is runnable."""


class TrainEngine(Protocol):
    """Per-run adapters, gradients and optimizers over one frozen base. Not thread-safe."""

    shape: ModelShape

    def create(self, run_id: RunId, lora: LoraSpec) -> None:
        """Make version 0 of a run, determined by ``lora.seed`` alone."""

    def drop(self, run_id: RunId) -> None:
        """Free a run's state; unknown runs are ignored."""

    def has_run(self, run_id: RunId) -> bool:
        """True if the run's state is resident."""

    def forward(
        self, run_id: RunId, data: Sequence[Datum], *, adapter: bool
    ) -> Generator[TrainStep, None, ForwardResult]:
        """Log-probs where masked; yields after each micro-batch."""

    def forward_backward(
        self, run_id: RunId, data: Sequence[Datum], loss: Loss, config: dict[str, float]
    ) -> Generator[TrainStep, None, ForwardResult]:
        """Accumulate the gradient of the token-summed loss; yields after each micro-batch.

        A failure leaves the accumulated gradient as it was before the call. NotFinite if no step
        could be made of what would be accumulated: its norm is not finite.
        """

    def forward_backward_many(
        self, ops: Sequence[ForwardBackward]
    ) -> Generator[TrainStep, None, tuple[ForwardResult | PlaitError, ...]]:
        """``forward_backward`` of several runs, each once at most, in micro-batches they share.

        A run's failure is its own outcome, and leaves its accumulated gradient as it was; the
        others get the gradients that they would get without it.
        """

    def optim_step(self, run_id: RunId, adam: AdamParams) -> StepResult:
        """AdamW on the accumulated gradient, then clear it. NotFinite (and no change) if the
        gradient or the new weights are not finite."""

    def save(self, run_id: RunId, path: str, *, optimizer: bool) -> None:
        """Write PEFT safetensors (and ``optimizer.safetensors``) into an existing directory."""

    def load(self, run_id: RunId, path: str, *, optimizer: bool) -> None:
        """Make the run (if need be) and restore it bit for bit from ``save``'s files."""
