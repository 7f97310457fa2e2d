"""Trainer: LoRA training of many runs over one frozen base, one micro-batch at a time.

Each run owns its parameters, gradient, moments and step counter (``params``); the base weights are
mapped once and never written. A failed operation leaves the run as it was. Control returns after
every micro-batch; which operation comes next, and with how many threads, is the worker's.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import torch

from plait.core.errors import EngineError, RequestError
from plait.core.ids import RunId
from plait.core.operations import AdamParams, Datum, ForwardResult, StepResult
from plait.core.runs import LoraSpec
from plait.engines.factory import TRAIN_BYTES
from plait.engines.protocol import TrainStep
from plait.engines.torch.model import Rope
from plait.engines.torch.train.adamw import adamw_step
from plait.engines.torch.train.batch import Checked, Packed, check, pack
from plait.engines.torch.train.head import block_rows
from plait.engines.torch.train.losses import Chosen, Report, choose, metrics
from plait.engines.torch.train.model import logprobs
from plait.engines.torch.train.packing import (
    SLACK,
    Cost,
    forward_cost,
    halves,
    micro_batches,
    train_cost,
)
from plait.engines.torch.train.params import RunParams
from plait.engines.torch.train.prefix import families
from plait.engines.torch.train.state import load_run, save_run
from plait.engines.torch.weights import load_weights
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
        recompute: bool = False,
        on_layer: Callable[[], None] = lambda: None,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        """``recompute`` saves most of a micro-batch's memory for the time of a forward pass."""
        self.shape = read_shape(model_dir)
        self._base_model = str(model_dir)
        self._on_layer, self._recompute = on_layer, recompute
        self._weights = load_weights(model_dir, dtype=dtype, device=device)
        self._arch, self._device = self._weights.arch, self._weights.device
        self._rope = Rope(self._arch, self._device, dtype)
        self._budget_bytes = int(memory_bytes / SLACK)
        self._max_tokens = max_tokens or MAX_TOKENS.get(self._device.type, MAX_TOKENS["cpu"])
        head_bytes = block_rows(self._arch.vocab_size) * self._arch.vocab_size * 4
        self._train_cost = train_cost(self._arch, dtype.itemsize, head_bytes, recompute=recompute)
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
        checked = check(data, self._arch, None)

        def score(batch: Packed) -> torch.Tensor:
            with torch.inference_mode():
                return self._logprobs(batch, params)

        logprobs = yield from self._passes(run_id, checked, self._forward_cost, score, True)
        n = sum(map(len, logprobs))
        return ForwardResult(logprobs=logprobs, metrics={"tokens:sum": float(n)})

    def forward_backward(
        self, run_id: RunId, data: Sequence[Datum], loss: str, config: dict[str, float]
    ) -> Generator[TrainStep, None, ForwardResult]:
        """Add the gradient of the summed loss; nothing is added if this fails or is closed."""
        params = self._run(run_id)
        chosen = choose(loss, config)
        checked = check(data, self._arch, chosen.choice)
        reports: list[Report] = []
        before = params.grad.clone()
        done = False

        def learn(batch: Packed) -> torch.Tensor:
            return self._learn(batch, params, chosen, reports)

        try:
            logprobs = yield from self._passes(run_id, checked, self._train_cost, learn, False)
            if not bool(torch.isfinite(params.grad).all()):
                raise EngineError(
                    f"the gradient of {loss} is not finite: check advantages and clips"
                )
            done = True
        finally:
            if not done:
                params.grad.copy_(before)
        return ForwardResult(logprobs=logprobs, metrics=metrics(reports))

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
        params = load_run(path, self._arch, self._device, optimizer=optimizer)
        if (resident := self._runs.get(run_id)) is not None:
            params.version = max(params.version, resident.version)
        self._runs[run_id] = params

    def _run(self, run_id: RunId) -> RunParams:
        if run_id not in self._runs:
            raise RequestError(f"run {run_id} is not resident: create or load it first")
        return self._runs[run_id]

    def _passes(
        self,
        run_id: RunId,
        checked: Sequence[Checked],
        cost: Cost,
        carry_out: Callable[[Packed], torch.Tensor],
        forward_only: bool,
    ) -> Generator[TrainStep, None, tuple[tuple[float, ...], ...]]:
        """Carry out every micro-batch, halving those that do not fit; log-probs in data order."""
        index = [i for i, c in enumerate(checked) if len(c.scored)]
        lengths = [checked[i].length for i in index]
        alike = families([checked[i].tokens for i in index])
        planned = micro_batches(lengths, cost, self._budget_bytes, self._max_tokens, alike)
        waiting = deque(tuple(index[j] for j in batch) for batch in planned)
        out: list[tuple[float, ...]] = [()] * len(checked)
        while waiting:
            batch = waiting.popleft()
            try:
                packed = pack([checked[i] for i in batch], self._device)
                logprobs_M = carry_out(packed)
            except (RuntimeError, MemoryError) as e:
                if not _out_of_memory(e):
                    raise
                if len(batch) == 1:
                    raise EngineError(
                        f"datum {batch[0]} alone ({checked[batch[0]].length} tokens) does not fit "
                        "into memory: shorten it or free memory"
                    ) from e
                waiting.extendleft(reversed(halves(batch)))
                continue
            for i, values in zip(batch, logprobs_M.split(packed.counts), strict=True):
                out[i] = tuple(values.tolist())
            yield TrainStep(
                run_id=run_id, n_tokens=packed.tokens_N.shape[0], forward_only=forward_only
            )
        return tuple(out)

    def _logprobs(self, batch: Packed, params: RunParams | None) -> torch.Tensor:
        return logprobs(
            self._weights,
            self._rope,
            batch,
            params,
            self._on_layer,
            recompute=self._recompute,
        )

    def _learn(
        self, batch: Packed, params: RunParams, loss: Chosen, reports: list[Report]
    ) -> torch.Tensor:
        before = params.grad.clone()
        fits = False
        try:
            logprobs_M = self._logprobs(batch, params)
            total, report = loss(logprobs_M, batch.inputs_M, batch.counts)
            if not bool(torch.isfinite(total)):
                raise EngineError("the loss is not finite: check advantages and log-probs")
            total.backward()
            reports.append(report)
            fits = True
        finally:
            if not fits:
                params.grad.copy_(before)
        return logprobs_M.detach()


def _out_of_memory(error: Exception) -> bool:
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or "can't allocate memory" in str(error)
        or "not enough memory" in str(error)
    )
