"""Trainer: LoRA training of many runs over one frozen base, one micro-batch at a time.

Each run owns its parameters, gradient, moments and step counter (``params``); the base weights are
mapped once and never written. A failed operation leaves the run as it was. Control returns after
every micro-batch; which operation comes next, whose gradients share a pass, and with how many
threads, is the worker's.
"""

from collections.abc import Callable, Generator, Sequence
from math import ceil
from pathlib import Path

import torch

from plait.core.custom_losses import CustomLoss, Loss
from plait.core.errors import PlaitError, RequestError
from plait.core.ids import RunId
from plait.core.operations import (
    AdamParams,
    Datum,
    ForwardBackward,
    ForwardResult,
    StepResult,
)
from plait.core.runs import LoraSpec
from plait.engines.factory import TRAIN_BYTES
from plait.engines.protocol import TrainStep
from plait.engines.torch.base import open_trainee
from plait.engines.torch.lanes import LANES, Lanes, OnLayer
from plait.engines.torch.train.adamw import adamw_step
from plait.engines.torch.train.batch import Packed
from plait.engines.torch.train.checked import check
from plait.engines.torch.train.head import block_rows
from plait.engines.torch.train.learning import Lesson, learn
from plait.engines.torch.train.losses import Chosen, choose
from plait.engines.torch.train.own import OwnLoss, check_own
from plait.engines.torch.train.packing import (
    SLACK,
    Cost,
    forward_cost,
    rounds,
    train_cost,
)
from plait.engines.torch.train.params import RunParams
from plait.engines.torch.train.passes import Plan, Share, passes
from plait.engines.torch.train.state import load_run, save_run
from plait.models.registry import read_shape

MAX_TOKENS = {"cpu": 512, "cuda": 32_768}
"""Tokens of a micro-batch at most, so that control returns often. Fewer cost more than they save: a
prefix is computed once per micro-batch (measured: 256 tokens take 1.4 times as long)."""


class TorchTrain:
    """``TrainEngine`` over one model directory. Not thread-safe: one owner calls it."""

    def __init__(
        self,
        model_dir: str | Path,
        *,
        memory_bytes: int = TRAIN_BYTES,
        max_tokens: int | None = None,
        lanes: int = LANES,
        recompute: bool = False,
        on_layer: Callable[[], None] = lambda: None,
        exact: bool = False,
        by_transformers: bool = False,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        """``recompute`` saves most of a micro-batch's memory for the time of a forward pass;
        ``by_transformers``: the reference, where our own forward would do as well."""
        self.shape = read_shape(model_dir)
        self._base_model = str(model_dir)
        self._exact = exact
        self._model = open_trainee(
            model_dir,
            dtype=dtype,
            device=device,
            exact=exact,
            recompute=recompute,
            by_transformers=by_transformers,
        )
        self._arch, self._device = self._model.arch, self._model.device
        at_once = self._model.side_by_side and self._device.type == "cpu"
        self._lanes = Lanes(lanes if at_once else 1, on_layer)
        self._budget_bytes = int(memory_bytes / SLACK)
        self._max_tokens = max_tokens or MAX_TOKENS.get(self._device.type, MAX_TOKENS["cpu"])
        head_bytes = block_rows(self._arch.vocab_size) * self._arch.vocab_size * 4
        self._train_cost = train_cost(
            self._arch, ceil(dtype.itemsize * self._model.kept), head_bytes, recompute=recompute
        )
        self._forward_cost = forward_cost(self._arch, dtype.itemsize, head_bytes)
        self._runs: dict[RunId, RunParams] = {}

    def create(self, run_id: RunId, lora: LoraSpec) -> None:
        """Make version 0 of a run; RequestError if the spec is wrong or the run exists."""
        if run_id in self._runs:
            raise RequestError(f"run {run_id} exists already: drop it first or choose another id")
        params = RunParams(self._arch, lora, self._device)
        params.init()
        self._runs[run_id] = params

    def drop(self, run_id: RunId) -> None:
        """Free a run's state; unknown runs are ignored."""
        self._runs.pop(run_id, None)

    def has_run(self, run_id: RunId) -> bool:
        """True if the run's state is resident."""
        return run_id in self._runs

    def forward(
        self, run_id: RunId, data: Sequence[Datum], *, adapter: bool
    ) -> Generator[TrainStep, None, ForwardResult]:
        """Log-probs where masked; the base model's own where ``adapter`` is false."""
        params = self._run(run_id) if adapter else None
        share = Share(run_id=run_id, checked=check(data, self._arch, None))

        def score(batch: Packed, here: Sequence[Share], on_layer: OnLayer) -> torch.Tensor:
            with torch.inference_mode():
                return self._model.logprobs(batch, [params], on_layer)

        yield from passes(
            [share],
            score,
            lambda logprobs_M, here: logprobs_M,
            self._plan(self._forward_cost),
            self._lanes,
            self._device,
            forward_only=True,
            exact=self._exact,
        )
        if share.error is not None:
            raise share.error
        n = sum(map(len, share.logprobs))
        return ForwardResult(logprobs=tuple(share.logprobs), metrics={"tokens:sum": float(n)})

    def forward_backward(
        self, run_id: RunId, data: Sequence[Datum], loss: Loss, config: dict[str, float]
    ) -> Generator[TrainStep, None, ForwardResult]:
        """Add the gradient of the summed loss; nothing is added if this fails or is closed."""
        lesson = self._lesson(run_id, data, loss, config)
        yield from self._learn([lesson])
        outcome = lesson.outcome()
        if isinstance(outcome, PlaitError):
            raise outcome
        return outcome

    def forward_backward_many(
        self, ops: Sequence[ForwardBackward]
    ) -> Generator[TrainStep, None, tuple[ForwardResult | PlaitError, ...]]:
        """The same for several runs, in shared micro-batches unless exact; what fails of one is its
        outcome."""
        if len({op.run_id for op in ops}) < len(ops):
            raise RequestError("a run is in one pass twice: ask for its gradients one by one")
        begun: list[Lesson | PlaitError] = []
        for op in ops:
            try:
                begun.append(self._lesson(op.run_id, op.data, op.loss, op.loss_config))
            except PlaitError as error:
                begun.append(error)
        lessons = [lesson for lesson in begun if isinstance(lesson, Lesson)]
        yield from self._learn(lessons)
        return tuple(x.outcome() if isinstance(x, Lesson) else x for x in begun)

    def optim_step(self, run_id: RunId, adam: AdamParams) -> StepResult:
        """AdamW on the accumulated gradient, then clear it."""
        params = self._run(run_id)
        norms = adamw_step(params, adam)
        return StepResult(version=params.version, metrics=norms)

    def save(self, run_id: RunId, path: str, *, optimizer: bool) -> None:
        """Write the run into the existing directory ``path``, flushed to disk."""
        save_run(path, self._run(run_id), base_model=self._base_model, optimizer=optimizer)

    def load(self, run_id: RunId, path: str, *, optimizer: bool) -> None:
        """Replace the run (made if need be) with what lies under ``path``; all or nothing."""
        params = load_run(
            path, self._arch, self._device, optimizer=optimizer, head_VD=self._model.head_VD
        )
        if (resident := self._runs.get(run_id)) is not None:
            params.version = max(params.version, resident.version)
        self._runs[run_id] = params

    def _run(self, run_id: RunId) -> RunParams:
        if run_id not in self._runs:
            raise RequestError(f"run {run_id} is not resident: create or load it first")
        return self._runs[run_id]

    def _lesson(
        self, run_id: RunId, data: Sequence[Datum], loss: Loss, config: dict[str, float]
    ) -> Lesson:
        params = self._run(run_id)
        chosen: Chosen | OwnLoss
        if isinstance(loss, CustomLoss):
            chosen, checked = OwnLoss(loss=loss), check_own(loss, data, self._arch)
        else:
            chosen = choose(loss, config)
            checked = check(data, self._arch, chosen.choice)
        return Lesson(run_id=run_id, checked=checked, params=params, loss=chosen)

    def _learn(self, lessons: Sequence[Lesson]) -> Generator[TrainStep, None, None]:
        plan = self._plan(self._train_cost)
        return learn(
            lessons, self._model.logprobs, plan, self._lanes, self._device, exact=self._exact
        )

    def _plan(self, cost: Cost) -> Plan:
        budget_bytes, max_tokens = self._budget_bytes, self._max_tokens
        n = self._lanes.n
        return lambda lengths, alike: rounds(
            lengths, cost, budget_bytes, max_tokens, alike, lanes=n
        )
