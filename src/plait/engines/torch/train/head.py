"""Head: log-probs of given tokens, at the positions that are scored, without keeping logits.

Logits are made a block of rows at a time. The derivative of a log-prob by the hidden state is
``W[target] - softmax · W``: the second vector is all that the backward pass needs of the logits
where the head is frozen, so none are kept or made twice, however many targets a position has. A run
that trains the head has its logits made again in the backward pass: its B matrix's gradient needs
all of them, and what they are weighted with is not known before. Log-probs are fp32 whatever the
weights are.

Shapes: S scored positions, M targets of them, D hidden, V vocabulary, C rows of a block.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from plait.engines.torch.sampling import log_totals, shift_and_sum
from plait.engines.torch.train.ops import Adapters, add_adapters, add_gradients
from plait.engines.torch.train.params import Fused
from plait.engines.torch.train.products import PLAIN, Products

BLOCK_BYTES = 50_400_000
"""Logits at a time: 256 rows at 49 k tokens, where the products reach the machine's GEMM rate."""


def block_rows(vocab_size: int) -> int:
    """Rows of logits that are made at a time."""
    return max(16, BLOCK_BYTES // (4 * vocab_size))


def target_logprobs(
    h_SD: torch.Tensor,
    head_VD: torch.Tensor,
    targets_M: torch.Tensor,
    of_M: torch.Tensor | None = None,
    by: Products = PLAIN,
    adapter: Fused | None = None,
) -> torch.Tensor:
    """``log softmax(h W^T)[target]``, fp32, differentiable in ``h``, and in the ``adapter`` that is
    added to W.

    ``of_M``, rising, is the row of ``h`` that each target belongs to; ``None``: one for each.
    """
    if of_M is None:
        of_M = torch.arange(len(h_SD), device=h_SD.device)
    if adapter is None:
        return _TargetLogprobs.apply(h_SD, head_VD, targets_M, of_M, by)
    return _TunedLogprobs.apply(h_SD, adapter.marker, head_VD, targets_M, of_M, adapter, by)


class _TargetLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h_SD, head_VD, targets_M, of_M, by):
        keep = ctx.needs_input_grad[0]
        out_M = torch.empty(len(targets_M), dtype=torch.float32, device=h_SD.device)
        slope_SD = torch.empty_like(h_SD) if keep else None
        for rows, its, at_C, logits_CV in _blocks(h_SD, head_VD, of_M, by):
            out_M[its], p_CV = _evaluate(logits_CV, at_C, targets_M[its], by)
            if keep and by.exact:
                slope_SD[rows] = by.back(p_CV, head_VD)
            elif keep:
                torch.mm(p_CV.to(head_VD.dtype), head_VD, out=slope_SD[rows])
        if keep:
            ctx.save_for_backward(head_VD, targets_M, of_M, slope_SD)
        return out_M

    @staticmethod
    def backward(ctx, d_M):
        head_VD, targets_M, of_M, slope_SD = ctx.saved_tensors
        d_M = d_M.to(head_VD.dtype)
        of_first_S = torch.searchsorted(of_M, torch.arange(len(slope_SD), device=of_M.device))
        dh_SD = F.embedding_bag(targets_M, head_VD, of_first_S, mode="sum", per_sample_weights=d_M)
        d_S1 = d_M.new_zeros(len(slope_SD), 1).index_add_(0, of_M, d_M[:, None])
        return dh_SD.addcmul_(slope_SD, d_S1, value=-1), None, None, None, None


class _TunedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h_SD, marker, head_VD, targets_M, of_M, adapter, by):
        out_M = torch.empty(len(targets_M), dtype=torch.float32, device=h_SD.device)
        # Not saved with the others: an exact product knows the head by its identity.
        ctx.head_VD, ctx.adapter, ctx.by = head_VD, adapter, by
        ctx.save_for_backward(h_SD, targets_M, of_M)
        for rows, its, at_C, logits_CV in _blocks(h_SD, head_VD, of_M, by):
            add_adapters(h_SD[rows], logits_CV, _all_rows(adapter), by)
            out_M[its], _ = _evaluate(logits_CV, at_C, targets_M[its], by)
        return out_M

    @staticmethod
    def backward(ctx, d_M):
        h_SD, targets_M, of_M = ctx.saved_tensors
        head_VD, adapter, by = ctx.head_VD, ctx.adapter, ctx.by
        dh_SD = torch.empty_like(h_SD) if ctx.needs_input_grad[0] else None
        for rows, its, at_C, logits_CV in _blocks(h_SD, head_VD, of_M, by):
            us = add_adapters(h_SD[rows], logits_CV, _all_rows(adapter), by)
            _, p_CV = _evaluate(logits_CV, at_C, targets_M[its], by)
            d_C1 = d_M.new_zeros(len(p_CV), 1).index_add_(0, at_C, d_M[its, None])
            dlogits_CV = p_CV.mul_(d_C1.neg_())
            places = at_C * len(head_VD) + targets_M[its]
            dlogits_CV.view(-1).index_add_(0, places, d_M[its])
            dlogits_CV = dlogits_CV.to(head_VD.dtype)
            dh_CD = None if dh_SD is None else by.back(dlogits_CV, head_VD)
            add_gradients(h_SD[rows], dlogits_CV, us, _all_rows(adapter), dh_CD, by)
            if dh_SD is not None:
                dh_SD[rows] = dh_CD
        return dh_SD, None, None, None, None, None, None


def _blocks(h_SD, head_VD, of_M, by) -> Iterator[tuple[slice, slice, torch.Tensor, torch.Tensor]]:
    """Rows of each block, the targets that are theirs, each target's row within the block, and the
    base model's logits, which may be used up."""
    n, n_blocks = len(h_SD), -(-len(h_SD) // block_rows(len(head_VD)))
    n_rows = -(-n // n_blocks)  # equal ones: a few rows by themselves run at a fraction
    # One buffer for every block: fresh pages would cost more than the softmax.
    buffer = None if by.exact else h_SD.new_empty(n_rows, len(head_VD))
    for start in range(0, n, n_rows):
        rows = slice(start, min(start + n_rows, n))
        ends = of_M.new_tensor([rows.start, rows.stop])
        its = slice(*torch.searchsorted(of_M, ends).tolist())
        if by.exact:
            logits_CV = by.linear(h_SD[rows], head_VD, None)
        else:
            logits_CV = torch.mm(h_SD[rows], head_VD.T, out=buffer[: rows.stop - start])
        yield rows, its, of_M[its] - start, logits_CV


def _all_rows(adapter) -> Adapters:
    return [(slice(None), adapter)]


def _evaluate(logits_CV, at_M, targets_M, by):
    how = _exactly if by.exact else _plainly
    return how(logits_CV.float(), at_M, targets_M)


def _plainly(logits_CV, at_M, targets_M):
    """Log-probs, and all probabilities in the logits' place."""
    found_M = logits_CV[at_M, targets_M]
    top_C1 = logits_CV.amax(1, keepdim=True)
    p_CV = torch.softmax(logits_CV, 1, out=logits_CV)
    # The largest probability never underflows, as the target's can.
    log_sum_C1 = top_C1 - p_CV.amax(1, keepdim=True).log_()
    return found_M.sub_(log_sum_C1[at_M, 0]), p_CV


def _exactly(logits_CV, at_M, targets_M):
    """The same as the sampler makes them."""
    log_total_C = log_totals(shift_and_sum(logits_CV, ())[0])
    logprobs_M = logits_CV[at_M, targets_M].double() - log_total_C[at_M]
    return logprobs_M.float(), logits_CV.sub_(log_total_C.float()[:, None]).exp_()
