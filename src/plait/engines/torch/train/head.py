"""Head: log-probs of given tokens, at the positions that are scored, without keeping logits.

Logits are made a block of rows at a time. The derivative of a log-prob by the hidden state is
``W[target] - softmax · W``: the second vector is all that the backward pass needs of the logits
(the head is frozen), so none are kept or made twice, however many targets a position has. Log-probs
are fp32 whatever the weights are.

Shapes: M scored positions, K targets of each, D hidden, V vocabulary, C rows of a block.
"""

import torch
import torch.nn.functional as F

BLOCK_BYTES = 50_000_000
"""Logits at a time: 256 rows at 49 k tokens, where the products reach the machine's GEMM rate."""


def block_rows(vocab_size: int) -> int:
    """Rows of logits that are made at a time."""
    return max(16, BLOCK_BYTES // (4 * vocab_size))


def target_logprobs(
    h_MD: torch.Tensor, head_VD: torch.Tensor, targets_M: torch.Tensor
) -> torch.Tensor:
    """``log softmax(h W^T)[target]``, fp32, differentiable in ``h`` only.

    Targets are ``(M,)`` or ``(M, K)``, and so is the result.
    """
    targets_MK = targets_M.view(len(targets_M), -1)
    return _TargetLogprobs.apply(h_MD, head_VD, targets_MK).view(targets_M.shape)


class _TargetLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h_MD, head_VD, targets_MK):
        keep, (m, n_vocab) = ctx.needs_input_grad[0], (len(h_MD), len(head_VD))
        out_MK = torch.empty(targets_MK.shape, dtype=torch.float32, device=h_MD.device)
        slope_MD = torch.empty_like(h_MD) if keep else None
        n_rows = min(m, block_rows(n_vocab))
        # One buffer for every block: fresh pages would cost more than the softmax.
        buffer = h_MD.new_empty(n_rows, n_vocab)
        for start in range(0, m, n_rows):
            rows = slice(start, min(start + n_rows, m))
            logits_CV = torch.mm(h_MD[rows], head_VD.T, out=buffer[: rows.stop - start]).float()
            target_logits_CK = logits_CV.gather(1, targets_MK[rows])
            top_C1 = logits_CV.amax(1, keepdim=True)
            p_CV = torch.softmax(logits_CV, 1, out=logits_CV)
            # The largest probability never underflows, as the target's can.
            log_sum_C1 = top_C1 - p_CV.amax(1, keepdim=True).log_()
            out_MK[rows] = target_logits_CK - log_sum_C1
            if keep:
                torch.mm(p_CV.to(head_VD.dtype), head_VD, out=slope_MD[rows])
        if keep:
            ctx.save_for_backward(head_VD, targets_MK, slope_MD)
        return out_MK

    @staticmethod
    def backward(ctx, d_MK):
        head_VD, targets_MK, slope_MD = ctx.saved_tensors
        d_MK = d_MK.to(head_VD.dtype)
        dh_MD = F.embedding_bag(targets_MK, head_VD, mode="sum", per_sample_weights=d_MK)
        return dh_MD.addcmul_(slope_MD, d_MK.sum(1, keepdim=True), value=-1), None, None
