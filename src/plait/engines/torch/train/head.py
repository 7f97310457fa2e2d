"""Head: log-probs of given tokens, at the positions that are scored, without keeping logits.

Logits are made a block of rows at a time. The derivative of a log-prob by the hidden state is
``W[target] - softmax · W``: the second vector is all that the backward pass needs of the logits
(the head is frozen), so none are kept or made twice, however many targets a position has. Log-probs
are fp32 whatever the weights are.

Shapes: S scored positions, M targets of them, D hidden, V vocabulary, C rows of a block.
"""

import torch
import torch.nn.functional as F

from plait.engines.torch.sampling import log_totals, shift_and_sum
from plait.engines.torch.train.products import PLAIN, Products

BLOCK_BYTES = 50_000_000
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
) -> torch.Tensor:
    """``log softmax(h W^T)[target]``, fp32, differentiable in ``h`` only.

    ``of_M``, rising, is the row of ``h`` that each target belongs to; ``None``: one for each.
    """
    if of_M is None:
        of_M = torch.arange(len(h_SD), device=h_SD.device)
    return _TargetLogprobs.apply(h_SD, head_VD, targets_M, of_M, by)


class _TargetLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h_SD, head_VD, targets_M, of_M, by):
        keep, (n, n_vocab) = ctx.needs_input_grad[0], (len(h_SD), len(head_VD))
        out_M = torch.empty(len(targets_M), dtype=torch.float32, device=h_SD.device)
        slope_SD = torch.empty_like(h_SD) if keep else None
        n_rows = min(n, block_rows(n_vocab))
        # One buffer for every block: fresh pages would cost more than the softmax.
        buffer = None if by.exact else h_SD.new_empty(n_rows, n_vocab)
        for start in range(0, n, n_rows):
            rows = slice(start, min(start + n_rows, n))
            ends = of_M.new_tensor([rows.start, rows.stop])
            its = slice(*torch.searchsorted(of_M, ends).tolist())
            at_C = of_M[its] - start
            if by.exact:
                out_M[its], p_CV = _exactly(h_SD[rows], head_VD, at_C, targets_M[its], by)
                if keep:
                    slope_SD[rows] = by.back(p_CV, head_VD)
                continue
            logits_CV = torch.mm(h_SD[rows], head_VD.T, out=buffer[: rows.stop - start]).float()
            out_M[its] = logits_CV[at_C, targets_M[its]]
            top_C1 = logits_CV.amax(1, keepdim=True)
            p_CV = torch.softmax(logits_CV, 1, out=logits_CV)
            # The largest probability never underflows, as the target's can.
            log_sum_C1 = top_C1 - p_CV.amax(1, keepdim=True).log_()
            out_M[its] -= log_sum_C1[at_C, 0]
            if keep:
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


def _exactly(h_CD, head_VD, at_M, targets_M, by):
    """Log-probs as the sampler makes them, and all probabilities."""
    logits_CV = by.linear(h_CD, head_VD, None)
    log_total_C = log_totals(shift_and_sum(logits_CV, ())[0])
    logprobs_M = logits_CV[at_M, targets_M].double() - log_total_C[at_M]
    return logprobs_M.float(), logits_CV.sub_(log_total_C.float()[:, None]).exp_()
