"""ScriptedTrain: a ``TrainEngine`` for the toy policy, with real gradients and a real AdamW.

Invariants: a run's gradient, moments and step counter are its own; a gradient is added to what has
accumulated only when the whole call has succeeded; an optimizer step that would not be finite
changes nothing; ``save`` and ``load`` are bit exact.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import sleep as real_sleep

import numpy as np

from plait.core.custom_losses import CustomLoss, Loss
from plait.core.errors import NotFinite, PlaitError, RequestError
from plait.core.ids import RunId
from plait.core.operations import (
    AdamParams,
    Datum,
    ForwardBackward,
    ForwardResult,
    StepResult,
)
from plait.core.runs import LoraSpec
from plait.engines.protocol import ModelShape, TrainStep
from plait.engines.scripted import checks, files, losses, policy
from plait.engines.scripted.files import Moments
from plait.engines.scripted.own import OwnLoss
from plait.engines.scripted.policy import Adapter, Array


@dataclass(slots=True, kw_only=True)
class _Run:
    """What one run owns."""

    lora: LoraSpec
    adapter: Adapter
    version: int = 0
    moments: Moments = field(default_factory=Moments.empty)
    grad_2K: Array = field(default_factory=lambda: np.zeros((2, policy.N_FEATURES)))


class ScriptedTrain:
    """Per-run adapters, gradients and optimizers over the toy base."""

    def __init__(
        self,
        shape: ModelShape,
        *,
        sleep: Callable[[float], None] = real_sleep,
        token_s: float = 0.0,
    ) -> None:
        """Each micro-batch, which is one datum, sleeps ``token_s`` per token."""
        self.shape = shape
        self._sleep = sleep
        self._token_s = token_s
        self._runs: dict[RunId, _Run] = {}

    def create(self, run_id: RunId, lora: LoraSpec) -> None:
        """Make version 0 of a run, determined by ``lora`` alone."""
        if run_id in self._runs:
            raise RequestError(f"run {run_id} exists already: use a new id, or load into it")
        self._runs[run_id] = _Run(lora=lora, adapter=policy.initial(lora))

    def drop(self, run_id: RunId) -> None:
        """Free a run's state; unknown runs are ignored."""
        self._runs.pop(run_id, None)

    def has_run(self, run_id: RunId) -> bool:
        """True if the run's state is here."""
        return run_id in self._runs

    def forward(
        self, run_id: RunId, data: Sequence[Datum], *, adapter: bool
    ) -> Generator[TrainStep, None, ForwardResult]:
        """Log-probs where masked; yields after each datum."""
        chosen = self._run(run_id).adapter if adapter else None
        checks.data(data, self.shape)
        rows: list[tuple[float, ...]] = []
        for datum in data:
            rows.append(
                tuple(
                    float(self._logprobs(datum, i, chosen)[target])
                    for i in checks.scored(datum)
                    for target in checks.targets(datum, i)
                )
            )
            yield self._spent(run_id, datum, forward_only=True)
        n_scored = float(sum(map(len, rows)))
        return ForwardResult(logprobs=tuple(rows), metrics={"tokens:sum": n_scored})

    def forward_backward(
        self, run_id: RunId, data: Sequence[Datum], loss: Loss, config: dict[str, float]
    ) -> Generator[TrainStep, None, ForwardResult]:
        """Accumulate the gradient of the token-summed loss; yields after each datum."""
        run = self._run(run_id)
        grad_2K, result = yield from self._gradient(run_id, run, data, loss, config)
        run.grad_2K = _sum(run_id, run.grad_2K, grad_2K)
        return result

    def _gradient(
        self,
        run_id: RunId,
        run: _Run,
        data: Sequence[Datum],
        loss: Loss,
        config: dict[str, float],
    ) -> Generator[TrainStep, None, tuple[Array, ForwardResult]]:
        chosen, data = self._choose(data, loss, config)
        grad_K = np.zeros(policy.N_FEATURES)
        rows: list[tuple[float, ...]] = []
        terms: list[losses.Term] = []
        for datum in data:
            row: list[float] = []
            slopes: list[Array] = []
            inputs: list[dict[str, float]] = []
            for i in checks.scored(datum):
                logprobs_V = self._logprobs(datum, i, run.adapter)
                inputs.extend(checks.inputs(datum, i))
                for target in checks.targets(datum, i):
                    row.append(float(logprobs_V[target]))
                    slopes.append(policy.grad_logprob(self.shape.vocab_size, target, logprobs_V))
            with np.errstate(all="ignore"):  # what is not finite is found below
                for term, slope_K in zip(made := chosen.of(row, inputs), slopes, strict=True):
                    grad_K = grad_K + term.slope * slope_K
            terms.extend(made)
            rows.append(tuple(row))
            yield self._spent(run_id, datum, forward_only=False)
        metrics = chosen.metrics(terms)
        if not (np.isfinite(metrics["loss:sum"]) and np.isfinite(grad_K).all()):
            raise NotFinite(
                f"the loss of {run_id} is not finite: check advantages and log-probs; "
                "its gradient is as it was before"
            )
        a_K, b_K, scale = run.adapter.a_K, run.adapter.b_K, run.adapter.scale
        grad_2K = scale * np.stack([b_K * grad_K, a_K * grad_K])
        return grad_2K, ForwardResult(logprobs=tuple(rows), metrics=metrics)

    def _choose(
        self, data: Sequence[Datum], loss: Loss, config: dict[str, float]
    ) -> tuple[losses.Chosen | OwnLoss, Sequence[Datum]]:
        """The loss, and the data with what it looks up in them by position."""
        if isinstance(loss, CustomLoss):
            bare = [replace(datum, inputs={}) for datum in data]
            checks.data(bare, self.shape)
            return OwnLoss(loss, data), bare
        chosen = losses.choose(loss, config)
        checks.data(data, self.shape, chosen.choice)
        return chosen, data

    def forward_backward_many(
        self, ops: Sequence[ForwardBackward]
    ) -> Generator[TrainStep, None, tuple[ForwardResult | PlaitError, ...]]:
        """The same, one run after another; the gradients are added when all have been made."""
        if len({op.run_id for op in ops}) < len(ops):
            raise RequestError("a run is in one pass twice: ask for its gradients one by one")
        outcomes: list[ForwardResult | PlaitError] = []
        made: list[tuple[_Run, Array]] = []
        for op in ops:
            try:
                run = self._run(op.run_id)
                grad_2K, result = yield from self._gradient(
                    op.run_id, run, op.data, op.loss, op.loss_config
                )
                grad_2K = _sum(op.run_id, run.grad_2K, grad_2K)
            except PlaitError as error:
                outcomes.append(error)
            else:
                outcomes.append(result)
                made.append((run, grad_2K))
        for run, grad_2K in made:
            run.grad_2K = grad_2K
        return tuple(outcomes)

    def optim_step(self, run_id: RunId, adam: AdamParams) -> StepResult:
        """AdamW on the accumulated gradient, then clear it; NotFinite changes nothing."""
        run = self._run(run_id)
        with np.errstate(all="ignore"):  # what is not finite is found below
            adapter, moments, metrics = _adamw(run, adam)
        if not (np.isfinite(metrics["update_norm:mean"]) and np.isfinite(moments.v_2K).all()):
            raise NotFinite(
                f"the new weights of {run_id} would not be finite (learning rate "
                f"{adam.learning_rate}): nothing was changed; lower it"
            )
        run.adapter, run.moments = adapter, moments
        run.grad_2K = np.zeros_like(run.grad_2K)
        run.version += 1
        return StepResult(version=run.version, metrics=metrics)

    def save(self, run_id: RunId, path: str, *, optimizer: bool) -> None:
        """Write the adapter, and the optimizer if asked, into an existing directory."""
        run = self._run(run_id)
        where = Path(path)
        files.write_adapter(where, run.adapter, run.lora, run.version, self.shape.name)
        if optimizer:
            files.write_moments(where, run.moments)

    def load(self, run_id: RunId, path: str, *, optimizer: bool) -> None:
        """Make the run if need be and restore it bit for bit; else Adam starts anew."""
        where = Path(path)
        adapter, lora, version = files.read_adapter(where)
        moments = files.read_moments(where) if optimizer else Moments.empty()
        if (resident := self._runs.get(run_id)) is not None:
            version = max(version, resident.version)
        self._runs[run_id] = _Run(lora=lora, adapter=adapter, version=version, moments=moments)

    def _run(self, run_id: RunId) -> _Run:
        if run_id not in self._runs:
            raise RequestError(f"run {run_id} is not here: create or load it first")
        return self._runs[run_id]

    def _logprobs(self, datum: Datum, i: int, adapter: Adapter | None) -> Array:
        vocab_size = self.shape.vocab_size
        return policy.log_softmax(policy.logits(vocab_size, datum.input_tokens[i], adapter))

    def _spent(self, run_id: RunId, datum: Datum, *, forward_only: bool) -> TrainStep:
        n_tokens = len(datum.input_tokens)
        if self._token_s:
            self._sleep(self._token_s * n_tokens)
        tokens = {run_id: n_tokens}
        return TrainStep(n_tokens=n_tokens, tokens_by_run=tokens, forward_only=forward_only)


def _sum(run_id: RunId, before_2K: Array, grad_2K: Array) -> Array:
    """Both gradients together; NotFinite if no step could be made of that."""
    with np.errstate(all="ignore"):
        total_2K = before_2K + grad_2K
        if np.isfinite(np.linalg.norm(total_2K)):
            return total_2K
    raise NotFinite(
        f"the gradient of {run_id} is not finite: check advantages and clips; it is as it was "
        "before"
    )


def _adamw(run: _Run, adam: AdamParams) -> tuple[Adapter, Moments, dict[str, float]]:
    norm = float(np.linalg.norm(run.grad_2K))
    grad_2K = run.grad_2K
    if 0 < adam.grad_clip_norm < norm:
        grad_2K = grad_2K * (adam.grad_clip_norm / norm)
    step = run.moments.step + 1
    m_2K = adam.beta1 * run.moments.m_2K + (1 - adam.beta1) * grad_2K
    v_2K = adam.beta2 * run.moments.v_2K + (1 - adam.beta2) * grad_2K**2
    m_hat_2K = m_2K / (1 - adam.beta1**step)
    v_hat_2K = v_2K / (1 - adam.beta2**step)
    old_2K = np.stack([run.adapter.a_K, run.adapter.b_K])
    new_2K = old_2K * (1 - adam.learning_rate * adam.weight_decay)
    new_2K = new_2K - adam.learning_rate * m_hat_2K / (np.sqrt(v_hat_2K) + adam.eps)
    metrics = {
        "grad_norm:mean": norm,
        "update_norm:mean": float(np.linalg.norm(new_2K - old_2K)),
    }
    adapter = Adapter(a_K=new_2K[0], b_K=new_2K[1], scale=run.adapter.scale)
    return adapter, Moments(m_2K=m_2K, v_2K=v_2K, step=step), metrics
