"""Sampling: the next token of each row, its log-prob, and what else was likely there.

A draw is a pure function of the row's logits and of (seed, sample index, place in the sample): it
depends neither on who shares the batch nor on what was drawn elsewhere, and a sample can go on
anywhere. It is a race (the Gumbel-max trick in another dress): every token has an exponential
variate of its own, and the largest weight over variate wins. So a perturbation of the logits (a
cache that is computed again moves them by 1e-5) changes the token only if it changes who wins. An
inverse CDF adds up all the perturbed weights below a token: with 49,152 tokens it was upset 150
times as often.

Log-probs are those of the full distribution at temperature 1, whatever the token was drawn by.

Shapes: R rows that draw; V vocabulary; D draws, or known tokens, where a row has any number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from plait.core.operations import Ranked, SamplingParams
from plait.engines.torch.noise import exponentials

BLOCK = 256
"""Blocks of tokens race first, then the tokens of the block that won: one variate for each token
would cost a tenth of a decode step, and the square root of a large vocabulary costs nothing."""

INSIDE = 1 << 32
TOKENS = 1 << 33
"""Where the numbers of a draw's variates begin for places in a block, and for tokens by id; blocks
begin at 0."""

NUCLEUS_CANDIDATES = 1024
"""Top-p is looked for among this many best tokens first; a full sort is the exception."""

CACHED_NUMBERS = 1 << 19
"""Logits worked on at a time: 2 MB of them and as much scratch stay in a core's caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Per row: token, log-prob, the likeliest tokens (none where none were asked for); ``ok_R`` is
    false where the logits were not finite."""

    tokens_R: list[int]
    logprobs_R: list[float]
    topk_R: list[Ranked]
    ok_R: list[bool]


def draw(
    logits_RV: torch.Tensor,
    params_R: Sequence[SamplingParams],
    keys_R: np.ndarray,
    k_R: Sequence[int] = (),
    *,
    apart: bool = False,
) -> Draws:
    """Draw one token per row and name the ``k_R`` likeliest. The logits are used up.

    ``apart``: each row filtered by itself, for how many candidates are looked at depends on all
    rows, and so does rounding.
    """
    logits = logits_RV.float()
    inverse = [1.0 / p.temperature if p.temperature > 0 else 1.0 for p in params_R]
    sums_RK, warm_RK = shift_and_sum(logits, inverse)
    plain = [i for i, p in enumerate(params_R) if p.temperature > 0 and not _filters(p)]
    filtered = [i for i, p in enumerate(params_R) if p.temperature > 0 and _filters(p)]
    if len(plain) == len(params_R):
        tokens_R = _race(logits, warm_RK, inverse, keys_R)
    else:
        tokens_R = logits.argmax(-1)
        if plain:
            rows = torch.tensor(plain, device=logits.device)
            found = _race(logits[rows], warm_RK[rows], [inverse[i] for i in plain], keys_R[plain])
            tokens_R.index_copy_(0, rows, found)
        if filtered:
            # Twice: the sum of a long row by itself would be divided among threads.
            for few in [[i, i] for i in filtered] if apart else [filtered]:
                rows = torch.tensor(few, device=logits.device)
                found = _filtered(logits[rows], [params_R[i] for i in few], keys_R[few])
                tokens_R.index_copy_(0, rows, found)
    return _draws(logits, sums_RK, tokens_R, k_R)


class Rows:
    """Rows that are asked about many tokens: D of them, each with the row that it is asked of. The
    logits are used up."""

    def __init__(self, logits_RV: torch.Tensor, temperature_R: Sequence[float]) -> None:
        self._z_RV = logits_RV.float()
        self._greedy_R = [t == 0 for t in temperature_R]
        self._inverse_R = [1.0 / t if t > 0 else 1.0 for t in temperature_R]
        self._sums_RK, self._warm_RK = shift_and_sum(self._z_RV, self._inverse_R)

    def draws(self, tokens_R: Sequence[int], k_R: Sequence[int]) -> Draws:
        """As ``draw`` tells it, of one known token in each row."""
        return _draws(self._z_RV, self._sums_RK, self._index(tokens_R), k_R)

    def logprobs(self, rows_D: Sequence[int], tokens_D: Sequence[int]) -> list[float]:
        """Of any tokens."""
        if not rows_D:
            return []
        rows = self._index(rows_D)
        logprobs_D = self._z_RV[rows, self._index(tokens_D)].double()
        found: list[float] = (logprobs_D - log_totals(self._sums_RK)[rows]).tolist()
        return found

    def drawn(self, rows_D: Sequence[int], keys_D: np.ndarray) -> list[int]:
        """A token for each draw, at its row's temperature."""
        rows = self._index(rows_D)
        inverse_D = [self._inverse_R[row] for row in rows_D]
        tokens_D = _race(self._z_RV, self._warm_RK[rows], inverse_D, keys_D, rows)
        if any(self._greedy_R):
            greedy_D = self._index([self._greedy_R[row] for row in rows_D])
            tokens_D = torch.where(greedy_D, self._z_RV.argmax(-1)[rows], tokens_D)
        found: list[int] = tokens_D.tolist()
        return found

    def _index(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, device=self._z_RV.device)


def _draws(
    z_RV: torch.Tensor, sums_RK: torch.Tensor, tokens_R: torch.Tensor, k_R: Sequence[int]
) -> Draws:
    """Log-probs from shifted logits and the block sums of their exponentials."""
    log_total_R = log_totals(sums_RK)
    logprobs_R = z_RV.gather(-1, tokens_R[:, None])[:, 0].double() - log_total_R
    topk_R: list[Ranked] = [()] * len(tokens_R)
    if wanting := [row for row, k in enumerate(k_R) if k]:
        rows = torch.tensor(wanting, device=z_RV.device)
        best, ids = z_RV[rows].topk(max(k_R), -1)
        best = best.double() - log_total_R[rows, None]
        for row, tokens, logprobs in zip(wanting, ids.tolist(), best.tolist(), strict=True):
            topk_R[row] = tuple(zip(tokens, logprobs, strict=True))[: k_R[row]]
    return Draws(
        tokens_R=tokens_R.tolist(),
        logprobs_R=logprobs_R.tolist(),
        topk_R=topk_R,
        ok_R=log_total_R.isfinite().tolist(),
    )


def log_totals(sums_RK: torch.Tensor) -> torch.Tensor:
    """Log of each row's sum of exponentials, fp64."""
    return sums_RK.sum(-1, dtype=torch.float64).log()


def shift_and_sum(
    logits_RV: torch.Tensor, inverse_R: Sequence[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Subtract each row's maximum in place; block sums of the exponentials, at temperature 1 and
    at the rows' own (one and the same tensor if all of these are 1).

    A few rows at a time, so that what one pass has written is still in the cache for the next.
    """
    r, v = logits_RV.shape
    few = max(1, CACHED_NUMBERS // v) if logits_RV.device.type == "cpu" else r
    scratch = logits_RV.new_empty(min(few, r), v)
    tempered = any(i != 1.0 for i in inverse_R)
    plain, warm = [], []
    for start in range(0, r, few):
        z = logits_RV[start : start + few]
        e = scratch[: z.shape[0]]
        z.sub_(z.amax(-1, keepdim=True))
        plain.append(_block_sums(torch.exp(z, out=e)))
        if tempered:
            torch.mul(z, _column(inverse_R[start : start + few], z), out=e)
            warm.append(_block_sums(e.exp_()))
    sums = torch.cat(plain)
    return sums, torch.cat(warm) if tempered else sums


def _filters(p: SamplingParams) -> bool:
    return p.top_k > 0 or p.top_p < 1.0


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _block_sums(p_RV: torch.Tensor) -> torch.Tensor:
    r, v = p_RV.shape
    whole = v // BLOCK * BLOCK
    sums = p_RV[:, :whole].unflatten(-1, (-1, BLOCK)).sum(-1) if whole else p_RV.new_zeros(r, 0)
    return sums if whole == v else torch.cat([sums, p_RV[:, whole:].sum(-1, keepdim=True)], -1)


def _race(
    z_RV: torch.Tensor,
    sums_DK: torch.Tensor,
    inverse_D: Sequence[float],
    keys_D: np.ndarray,
    rows_D: torch.Tensor | None = None,
) -> torch.Tensor:
    """Token drawn by its weight ``exp(z · inverse)``; it has some. ``rows_D``: the row of each draw
    where a row has not just one."""
    v, k = z_RV.shape[-1], sums_DK.shape[-1]
    block_D = _winner(sums_DK, exponentials(keys_D, np.arange(k)))
    column = block_D[:, None] * BLOCK + torch.arange(BLOCK, device=z_RV.device)
    within = column.clamp(max=v - 1)
    inside = z_RV.gather(-1, within) if rows_D is None else z_RV[rows_D[:, None], within]
    inside.mul_(_column(inverse_D, z_RV)).exp_().masked_fill_(column >= v, 0.0)
    return block_D * BLOCK + _winner(inside, exponentials(keys_D, INSIDE + np.arange(BLOCK)))


def _winner(weights_RN: torch.Tensor, variates_RN: np.ndarray) -> torch.Tensor:
    """Who wins each race: index drawn by weight."""
    return (weights_RN / torch.from_numpy(variates_RN).to(weights_RN.device)).argmax(-1)


def _filtered(
    logits_RV: torch.Tensor, params_R: Sequence[SamplingParams], keys_R: np.ndarray
) -> torch.Tensor:
    """Draw among the ``top_k`` best, then among the fewest of these that reach ``top_p``."""
    v = logits_RV.shape[-1]
    scaled = logits_RV / _column([p.temperature for p in params_R], logits_RV)
    k_R1 = _column([p.top_k or v for p in params_R], logits_RV).clamp(max=v)
    p_R1 = _column([p.top_p for p in params_R], logits_RV)
    n = min(v, max([NUCLEUS_CANDIDATES, *(p.top_k for p in params_R)]))
    log_total = scaled.logsumexp(-1, keepdim=True)
    best, ids = scaled.topk(n, -1)
    covered = (best - log_total).exp().sum(-1, keepdim=True)
    if bool(((covered < p_R1) & (k_R1 > n)).any()):
        n = v
        best, ids = scaled.sort(-1, descending=True)
    weights = (best - best[:, :1]).exp().masked_fill(torch.arange(n, device=best.device) >= k_R1, 0)
    # The total is that of the tokens which top-k has left: of all of them where it is off.
    total = torch.where(k_R1 >= v, (log_total - best[:, :1]).exp(), weights.sum(-1, keepdim=True))
    before = weights.cumsum(-1) - weights
    weights = weights.masked_fill((before >= p_R1 * total) & (before > 0), 0)
    index = _winner(weights, exponentials(keys_R, TOKENS + ids.cpu().numpy()))
    return ids.gather(-1, index[:, None])[:, 0]
