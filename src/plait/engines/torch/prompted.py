"""Prompted: what a request asks about the tokens of its prompt, and what is known of it so far.

Row i is what the model says behind prompt token i, so it is about token i + 1. Rows are scored in
order. Those before the first and behind the last that something is asked of need no logits, and a
cache may know them; nor do those between of which nothing is asked.

The draws of a row are named by the seed, their number and the row, apart from those of every
sample: whatever else is in the batch and wherever the request goes on, they are the same.
"""

from dataclasses import dataclass

from plait.core.operations import Alternatives, Ranked, Sample
from plait.engines.torch.noise import stream


@dataclass(slots=True, kw_only=True, eq=False)
class Prompted:
    """``n_scored`` is the next row; everything before it is known, as far as it is asked for."""

    op: Sample
    end: int
    """Behind the last row that something is asked of."""
    n_scored: int
    streams: tuple[int, ...]
    """Start of the random sequence of each draw of a row."""
    logprobs: list[float]
    topk: list[Ranked]
    targets: list[tuple[float, ...]]
    """One for each row, from the beginning."""
    draws: list[Alternatives]

    @property
    def is_done(self) -> bool:
        return self.n_scored >= self.end

    @property
    def n_ranked(self) -> int:
        """Likeliest tokens that a row is to name."""
        return self.op.topk_logprobs if self.op.prompt_logprobs else 0

    def named(self, row: int) -> tuple[int, ...]:
        """Tokens that are to be scored, other than the prompt's own."""
        return self.op.prompt_targets[row] if self.op.prompt_targets else ()

    def asks(self, row: int) -> bool:
        """Its logits are needed."""
        return self.op.prompt_logprobs or bool(self.streams) or bool(self.named(row))


def prompted(op: Sample) -> Prompted:
    """Nothing is known yet."""
    n_rows, start = len(op.prompt) - 1, 0
    streams = tuple(stream(op.params.seed, -1 - number) for number in range(op.prompt_draws))
    if not (op.prompt_logprobs or streams):
        naming = [row for row, ids in enumerate(op.prompt_targets) if ids]
        start, n_rows = (naming[0], naming[-1] + 1) if naming else (0, 0)
    return Prompted(
        op=op,
        end=n_rows,
        n_scored=start,
        streams=streams,
        logprobs=[],
        topk=[],
        targets=[()] * len(op.prompt_targets),
        draws=[],
    )
