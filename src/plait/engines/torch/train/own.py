"""Own: a client's own loss over the sequences that a run has in a micro-batch.

What goes backward through the model is ``Σ slope · logp`` with the slopes held still: the graph of
the client's loss ends at the log-probs, so whatever is wrong with it is found before anything of
another run is touched.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from plait.core.custom_losses import CustomLoss
from plait.core.operations import Datum
from plait.engines.torch.custom.evaluate import evaluate
from plait.engines.torch.custom.own import own_parts
from plait.engines.torch.sizes import Sizes
from plait.engines.torch.train.batch import Stretch
from plait.engines.torch.train.checked import Checked, check
from plait.engines.torch.train.losses import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLoss:
    """A client's loss; where ``losses.Chosen`` is one of ours."""

    loss: CustomLoss

    def on(self, logp_M: torch.Tensor, stretch: Stretch) -> tuple[torch.Tensor, Report]:
        """What to derive, and the report; RequestError or NotFinite if that is not possible."""
        rows = logp_M.detach().cpu().split(stretch.counts)
        sums: defaultdict[str, float] = defaultdict(float)
        slopes, total = [], 0.0
        for row, own in zip(rows, stretch.own, strict=True):
            found = evaluate(self.loss, row.reshape(own.shape), own.inputs, own.allowance)
            total += found.loss
            slopes.append(found.slopes.reshape(-1))
            for key, value in found.metrics.items():
                sums[key] += value
        report = Report(
            loss=total,
            tokens=logp_M.shape[0],
            per_token={},
            maxima={},
            own=dict(sums),
            data=len(rows),
        )
        return (torch.cat(slopes).to(logp_M.device) * logp_M).sum(), report


def check_own(loss: CustomLoss, data: Sequence[Datum], arch: Sizes) -> list[Checked]:
    """Data as the model takes them, with what the loss reads of each; RequestError."""
    bare = check([replace(datum, inputs={}) for datum in data], arch, None)
    parts = own_parts(loss, data)
    return [replace(one, own=own) for one, own in zip(bare, parts, strict=True)]
