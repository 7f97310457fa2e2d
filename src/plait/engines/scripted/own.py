"""Own: a client's own loss at the scripted engine, by the same interpreter as at the real one.

torch is imported when the first such loss comes: nothing else of this engine needs it.
"""

from collections import defaultdict
from collections.abc import Sequence

from plait.core.custom_losses import CustomLoss
from plait.core.operations import Datum
from plait.engines.scripted import losses
from plait.engines.scripted.losses import Inputs, Term


class OwnLoss:
    """One call's: asked for the terms of its data in their order."""

    def __init__(self, loss: CustomLoss, data: Sequence[Datum]) -> None:
        """RequestError if a datum is not what the loss declares."""
        from plait.engines.torch.custom.own import own_parts

        self._loss, self._n_data = loss, len(data)
        self._parts = iter(own_parts(loss, data))
        self._sums: defaultdict[str, float] = defaultdict(float)

    def of(self, logprobs: Sequence[float], rows: Sequence[Inputs]) -> list[Term]:
        """The terms of the next datum: its loss is at the first of them."""
        import torch

        from plait.engines.torch.custom.evaluate import evaluate

        own = next(self._parts)
        row = torch.tensor(logprobs, dtype=torch.float32).reshape(own.shape)
        found = evaluate(self._loss, row, own.inputs, own.allowance)
        for key, value in found.metrics.items():
            self._sums[key] += value
        slopes = found.slopes.reshape(-1).tolist()
        return [
            Term(loss=0.0 if i else found.loss, slope=slope, means={}, maxima={})
            for i, slope in enumerate(slopes)
        ]

    def metrics(self, terms: list[Term]) -> dict[str, float]:
        """Of all its data."""
        own = {
            key: total / self._n_data if key.endswith(":mean") else total
            for key, total in self._sums.items()
        }
        return losses.metrics(terms) | own
