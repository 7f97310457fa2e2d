"""Replies: log-probs are computed where they are asked for, and nowhere else."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from plait.core.operations import Sampled, SampleResult, StopReason
from plait.service.openai_api.asked import Asked
from plait.service.openai_api.replies import chat_reply
from plait.service.openai_api.stream import chat_choice
from plait.service.openai_api.watch import Piece


class Tokenizer:
    """Counts the tokens that are told by themselves, as log-probs tell them."""

    def __init__(self) -> None:
        self.n_single = 0

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        self.n_single += not skip_special
        return "".join(map(chr, tokens))


@pytest.mark.parametrize(("logprobs", "n"), [(True, 2), (False, 0)])
def test_chats_tell_tokens_by_themselves_only_for_log_probs(logprobs: bool, n: int) -> None:
    tokens, scores = (97, 98), (-0.5, -0.5)
    drawn = Sampled(tokens=tokens, logprobs=scores, stop_reason=StopReason.LENGTH, version=None)
    tokenizer = Tokenizer()
    work = SimpleNamespace(prompt=())
    asked = cast(
        Asked, SimpleNamespace(tokenizer=tokenizer, works=(work,), stops=(), ends=frozenset())
    )
    result = SampleResult(samples=(drawn,))
    reply = chat_reply(asked, (result,), logprobs=logprobs, ids=False, head={})
    assert (tokenizer.n_single, reply["choices"][0]["logprobs"] is not None) == (n, logprobs)
    piece = Piece(index=0, tokens=tokens, logprobs=scores, topk=())
    told = chat_choice(asked, logprobs=logprobs, ids=False)(piece, "ab", None)
    assert (tokenizer.n_single, told["logprobs"] is not None) == (2 * n, logprobs)
