"""Normalisation: token weights that turn the engine's plain sum over tokens into a mean.

Every scheme gives all tokens of one sequence the same weight, so a step's weights are one number
per sequence: ``weights_B`` over the B scored sequences of the step, those without signal included.
"""

from collections.abc import Sequence
from typing import Literal, assert_never

Normalisation = Literal["sequence-mean", "sequence-sum", "token-mean", "constant"]


def token_weights(
    n_tokens_B: Sequence[int], scheme: Normalisation, *, max_tokens: int
) -> tuple[float, ...]:
    """Weight of each sampled token of each sequence.

    - ``sequence-mean``: mean over a sequence's tokens, then over sequences: ``1 / (B · n_b)``
      (GRPO, arXiv 2402.03300 eq. 3; TRL ``loss_type="grpo"``).
    - ``sequence-sum``: sum over a sequence's tokens, mean over sequences: ``1 / B``, the gradient
      of ``log p(sequence)`` (RLOO, arXiv 2402.14740).
    - ``token-mean``: mean over all tokens: ``1 / Σ n`` (DAPO, arXiv 2503.14476; TRL ``"bnpo"``).
    - ``constant``: ``1 / (B · max_tokens)``, the same for short and long sequences (Dr. GRPO,
      arXiv 2503.20783; TRL ``"dr_grpo"``). ``max_tokens`` is what one sample may draw in all turns.
    """
    n_sequences = len(n_tokens_B)
    match scheme:
        case "sequence-mean":
            return tuple(1.0 / (n_sequences * max(n, 1)) for n in n_tokens_B)
        case "sequence-sum":
            return tuple(1.0 / n_sequences for _ in n_tokens_B)
        case "token-mean":
            total = max(sum(n_tokens_B), 1)
            return tuple(1.0 / total for _ in n_tokens_B)
        case "constant":
            if max_tokens < max(n_tokens_B, default=0):
                raise ValueError(f"a sequence is longer than max_tokens={max_tokens}")
            return tuple(1.0 / (n_sequences * max_tokens) for _ in n_tokens_B)
        case _:
            assert_never(scheme)
