"""Head: log-probs of given tokens, at the positions that are scored, without keeping logits.

Logits are made a block of rows at a time. Their softmax gives the derivative of the log-prob by the
hidden state at once, ``W[target] - softmax · W``: that vector is all the backward pass needs (the
head is frozen), so no logits are kept or made twice. Log-probs are fp32 whatever the weights are.

Shapes: M scored positions, D hidden, V vocabulary, C rows of a block.
"""

import torch

BLOCK_BYTES = 50_000_000
"""Logits at a time: 256 rows at 49 k tokens, where the products reach the machine's GEMM rate."""


def block_rows(vocab_size: int) -> int:
    """Rows of logits that are made at a time."""
    return max(16, BLOCK_BYTES // (4 * vocab_size))


def target_logprobs(
    h_MD: torch.Tensor, head_VD: torch.Tensor, targets_M: torch.Tensor
) -> torch.Tensor:
    """``log softmax(h W^T)[target]``, fp32, differentiable in ``h`` only."""
    return _TargetLogprobs.apply(h_MD, head_VD, targets_M)


class _TargetLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h_MD, head_VD, targets_M):
        keep, (m, n_vocab) = ctx.needs_input_grad[0], (len(h_MD), len(head_VD))
        out_M = torch.empty(m, dtype=torch.float32, device=h_MD.device)
        slope_MD = torch.empty_like(h_MD) if keep else None
        n_rows = min(m, block_rows(n_vocab))
        # One buffer for every block: fresh pages would cost more than the softmax.
        buffer = h_MD.new_empty(n_rows, n_vocab)
        for start in range(0, m, n_rows):
            rows = slice(start, min(start + n_rows, m))
            target_C1 = targets_M[rows].unsqueeze(1)
            logits_CV = torch.mm(h_MD[rows], head_VD.T, out=buffer[: rows.stop - start]).float()
            target_logit_C1 = logits_CV.gather(1, target_C1)
            top_C1 = logits_CV.amax(1, keepdim=True)
            p_CV = torch.softmax(logits_CV, 1, out=logits_CV)
            # The largest probability never underflows, as the target's can.
            log_sum_C1 = top_C1 - p_CV.amax(1, keepdim=True).log_()
            out_M[rows] = (target_logit_C1 - log_sum_C1).squeeze(1)
            if keep:
                torch.mm(p_CV.to(head_VD.dtype), head_VD, out=slope_MD[rows])
        if keep:
            ctx.save_for_backward(head_VD.index_select(0, targets_M).sub_(slope_MD))
        return out_M

    @staticmethod
    def backward(ctx, d_M):
        (slope_MD,) = ctx.saved_tensors
        return slope_MD * d_M.unsqueeze(1).to(slope_MD.dtype), None, None
