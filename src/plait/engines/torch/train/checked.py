"""Checked: training data that the model can take, cut to what has an influence.

Tokens after a sequence's last scored position influence nothing that is asked for and are left out.
Where one of the loss's factors is 0 a log-prob is wanted and has no influence (``moves``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.core.errors import RequestError
from plait.core.losses import INPUTS, Choice
from plait.core.operations import Datum
from plait.engines.torch.custom.own import Own
from plait.engines.torch.sizes import Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One datum, cut after its last scored position. ``inputs`` are at scored positions only."""

    tokens: np.ndarray
    targets: np.ndarray
    """``(length,)``, or ``(length, K)``."""
    scored: np.ndarray
    """Indices of scored positions, rising."""
    inputs: dict[str, np.ndarray]
    """Of the same shape as the targets of scored positions."""
    moves: np.ndarray
    """Of that shape too: where the loss can have a slope."""
    own: Own | None = None
    """What a client's own loss reads; ``inputs`` are empty then."""

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def n_targets(self) -> int:
        """Targets of each position."""
        return 1 if self.targets.ndim == 1 else self.targets.shape[1]


def check(data: Sequence[Datum], arch: Sizes, loss: Choice | None) -> list[Checked]:
    """Check every datum; RequestError names the first that is wrong and what would be right.

    Every datum must bring the inputs that the loss needs, and all of them the same. ``None``: they
    are only scored.
    """
    if not data:
        raise RequestError("the batch is empty: give at least one datum")
    needed = () if loss is None else loss.needed
    expected = {**dict.fromkeys(needed), **data[0].inputs}
    checked = [_check(i, datum, arch, loss, tuple(expected)) for i, datum in enumerate(data)]
    if not any(len(c.scored) for c in checked):
        raise RequestError("no position is scored: set the mask of at least one position")
    return checked


def _check(
    i: int, datum: Datum, arch: Sizes, loss: Choice | None, expected: Sequence[str]
) -> Checked:
    tokens = _ids(i, "input_tokens", datum.input_tokens, arch.vocab_size)
    targets = _ids(i, "target_tokens", datum.target_tokens, arch.vocab_size)
    mask = np.asarray(datum.mask, dtype=bool)
    n = len(tokens)
    if tokens.ndim > 1:
        raise RequestError(f"datum {i}: input_tokens must be one id per position")
    if n > arch.max_context:
        raise RequestError(
            f"datum {i} has {n} tokens, the model's context is {arch.max_context}: shorten it"
        )
    for name, length in (("target_tokens", len(targets)), ("mask", len(mask))):
        if length != n:
            raise RequestError(f"datum {i}: {length} {name} for {n} input_tokens; give one each")
    if targets.ndim > 1 and loss is not None:
        _check_soft(i, datum, loss)
    scored = np.flatnonzero(mask)
    for name in datum.inputs:
        if name not in INPUTS:
            raise RequestError(f"datum {i} has an input {name!r}; known: {', '.join(INPUTS)}")
        if name not in expected:
            raise RequestError(
                f"datum {i} has the input {name!r}, datum 0 has not: give all or none"
            )
    inputs = {}
    for name in expected:
        if name not in datum.inputs:
            raise RequestError(
                f"datum {i} lacks the input {name!r}; it has {sorted(datum.inputs) or 'none'}"
            )
        inputs[name] = _values(i, name, datum.inputs[name], targets.shape, scored)
    in_mean = inputs.get("sequence_ratio_mask", np.ones(1))
    if len(scored) and not (np.isin(in_mean, (0, 1)).all() and in_mean.any()):
        raise RequestError(
            f"datum {i}: sequence_ratio_mask must be 0 or 1, and 1 at a scored position"
        )
    end = int(scored[-1]) + 1 if len(scored) else 0
    moves = np.ones((len(scored), *targets.shape[1:]), dtype=bool)
    for name in () if loss is None else loss.factors:
        if name in inputs:
            moves &= inputs[name] != 0
    return Checked(
        tokens=tokens[:end], targets=targets[:end], scored=scored, inputs=inputs, moves=moves
    )


def _check_soft(i: int, datum: Datum, loss: Choice) -> None:
    if not loss.soft:
        raise RequestError(
            f"datum {i} has several targets per position, {loss.name} takes one: use cross_entropy"
        )
    if set(datum.inputs) != {"weights"}:
        raise RequestError(
            f"datum {i} has several targets per position: its inputs must be 'weights', one for "
            f"each target, and no others; it has {sorted(datum.inputs) or 'none'}"
        )


def _ids(i: int, name: str, values: Sequence, vocab_size: int) -> np.ndarray:
    """``(N,)`` or ``(N, K)``."""
    try:
        ids = np.asarray(values)
    except ValueError:
        raise RequestError(
            f"datum {i}: {name} differ in number from position to position: fill up with weight 0"
        ) from None
    if ids.ndim not in (1, 2) or not ids.size:
        raise RequestError(f"datum {i}: {name} must be a non-empty list of ids")
    if ids.dtype.kind not in "iu":
        raise RequestError(f"datum {i}: {name} must be whole numbers, not {ids.dtype}")
    if ids.min() < 0 or ids.max() >= vocab_size:
        bad = int(ids[(ids < 0) | (ids >= vocab_size)][0])
        raise RequestError(f"datum {i}: {name} holds {bad}; ids run from 0 to {vocab_size - 1}")
    return ids.astype(np.int64)


def _values(
    i: int, name: str, values: Sequence, shape: tuple[int, ...], scored: np.ndarray
) -> np.ndarray:
    """Of the targets' shape; those at scored positions."""
    try:
        array = np.asarray(values, dtype=np.float32)
    except (ValueError, TypeError):
        raise RequestError(f"datum {i}: {name} must be numbers, one for each target") from None
    if array.shape != shape:
        raise RequestError(
            f"datum {i}: {name} has the shape {array.shape}, its targets {shape}; give one each"
        )
    array = array[scored]
    if not np.isfinite(array).all():
        where = int(scored[np.argwhere(~np.isfinite(array))[0][0]])
        raise RequestError(f"datum {i}: {name} is not finite at scored position {where}")
    return array
