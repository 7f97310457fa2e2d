"""Head: log-probs of given tokens, at the positions that are scored, without keeping logits.

Logits are made a block of rows at a time. Their softmax gives the derivative of the log-prob by the
hidden state at once, ``W[target] - softmax · W``: that vector is all the backward pass needs (the
head is frozen), so no logits are kept or made twice. Log-probs are fp32 whatever the weights are.

Shapes: M scored positions, D hidden, V vocabulary, C rows of a block.
"""

import torch
import torch.nn.functional as F

BLOCK_ROWS = 128
"""Rows of logits at a time: at 49 k tokens 25 MB, and already at the machine's GEMM rate."""


def target_logprobs(
    h_MD: torch.Tensor, head_VD: torch.Tensor, targets_M: torch.Tensor
) -> torch.Tensor:
    """``log softmax(h W^T)[target]``, fp32, differentiable in ``h`` only."""
    return _TargetLogprobs.apply(h_MD, head_VD, targets_M)


class _TargetLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h_MD, head_VD, targets_M):
        keep = ctx.needs_input_grad[0]
        out_M = torch.empty(h_MD.shape[0], dtype=torch.float32, device=h_MD.device)
        slope_MD = torch.empty_like(h_MD) if keep else None
        for start in range(0, h_MD.shape[0], BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            target_C = targets_M[rows].unsqueeze(1)
            logits_CV = F.linear(h_MD[rows], head_VD).float()
            picked_C1 = logits_CV.gather(1, target_C)
            top_C1 = logits_CV.amax(1, keepdim=True)
            e_CV = logits_CV.sub_(top_C1).exp_()
            sum_C1 = e_CV.sum(1, keepdim=True)
            out_M[rows] = (picked_C1 - top_C1 - sum_C1.log()).squeeze(1)
            if keep:
                mean_CD = (e_CV.to(head_VD.dtype) @ head_VD).float() / sum_C1
                slope_MD[rows] = head_VD[target_C.squeeze(1)] - mean_CD.to(head_VD.dtype)
        ctx.save_for_backward(*([slope_MD] if keep else []))
        return out_M

    @staticmethod
    def backward(ctx, d_M):
        (slope_MD,) = ctx.saved_tensors
        return slope_MD * d_M.unsqueeze(1).to(slope_MD.dtype), None, None
