"""Model: any dense decoder of ``transformers``, as sampling and training see it.

Its own modules compute everything but three things: attention (``attention``), the adapters of its
linear layers, and which rows go through the head. The head's part of the model, whatever it does to
hidden states and logits, is run by itself on the rows that are wanted.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

from plait.engines.torch.batch import Batch
from plait.engines.torch.fallback.attention import cached, packed
from plait.engines.torch.fallback.board import Project
from plait.engines.torch.fallback.load import load, told
from plait.engines.torch.fallback.trial import measure, try_out
from plait.engines.torch.kv import KV
from plait.engines.torch.lanes import OnLayer
from plait.engines.torch.model import Adapters
from plait.engines.torch.packed import one_row, plain_rows
from plait.engines.torch.train import ops
from plait.engines.torch.train.batch import Packed
from plait.engines.torch.train.head import block_rows
from plait.engines.torch.train.params import RunParams
from plait.engines.torch.train.scored import Scored, gathered, moving


class TransformersModel:
    """``base.Sampler`` and ``base.Trainee`` over a ``transformers`` model."""

    kept = 2.0
    """Autograd keeps up to so many times what our own training does (measured on a Llama's shape:
    1.4 to 1.7): norms, gates, rotated heads and masks too."""
    side_by_side = False
    """The board is of one pass."""

    def __init__(
        self,
        model_dir: str | Path,
        *,
        dtype: torch.dtype,
        device: str,
        cache: Path | None = None,
        recompute: bool = False,
    ) -> None:
        """ModelError if the model does not compute what ``transformers`` alone does."""
        model, self._board, linears, head = load(model_dir, dtype=dtype, device=device, cache=cache)
        self._base: Any = getattr(model, model.base_model_prefix)
        self._head = _head(model)
        self.device, self.dtype = torch.device(device), dtype
        self.least_rows = plain_rows if self.device.type == "cpu" else one_row
        with told(model_dir):
            self.head_VD = model.get_output_embeddings().weight
            found = measure(self._board, self._hidden, self.device)
            self.arch, self.shares = found.sizes(model_dir, linears, head), found.is_plain
            score = partial(self.logprobs, params=[None], on_layer=lambda: None)
            try_out(model, self._board, score, self.device, str(model_dir))
        if recompute:
            for module in model.modules():
                if isinstance(module, GradientCheckpointingLayer):
                    module.forward = _recomputing(module.forward)

    def hidden(
        self, batch: Batch, kv: KV, adapters: Adapters | None, on_layer: OnLayer
    ) -> torch.Tensor:
        """Final hidden states ``h_ND`` of one step of sampling."""
        self._board.on_layer = on_layer
        self._board.answer, self._board.project = cached(kv, batch), _adding(adapters)
        return self._hidden(batch.tokens_N, batch.positions_N)

    def logits(self, h_RD: torch.Tensor, adapters: Adapters) -> torch.Tensor:
        """``logits_RV``, with whatever the model does to them."""
        self._board.head = _adding(adapters)
        return self._logits(h_RD)

    def graphs(self, kv: KV) -> None:
        """None: a model of ``transformers`` may wait for the device within a step."""

    def logprobs(
        self, batch: Packed, params: Sequence[RunParams | None], on_layer: OnLayer
    ) -> torch.Tensor:
        """Log-probs ``(M,)`` of a micro-batch's targets, with gradients to the adapters."""
        self._board.on_layer = on_layer
        tokens = [s.tokens for s in batch.stretches]
        self._board.answer, self._board.project = packed(batch), _learning(tokens, params)
        h_ND = self._hidden(batch.tokens_N, batch.positions_N)
        found = []
        for part in batch.scored:
            with moving(part):
                found.append(self._score(h_ND.index_select(0, part.rows_S), part, params))
        return gathered(found, batch.places_M)

    def _score(
        self, h_SD: torch.Tensor, part: Scored, params: Sequence[RunParams | None]
    ) -> torch.Tensor:
        """Log-probs ``(U,)`` of a part's targets."""
        of_U = part.of_U
        if of_U is None:
            of_U = torch.arange(len(h_SD), device=h_SD.device)
        found, n_rows = [], block_rows(self.arch.vocab_size)
        for start in range(0, len(h_SD), n_rows):
            rows = slice(start, start + n_rows)
            its = (of_U >= rows.start) & (of_U < rows.stop)
            head = _learning([_within(mine, rows) for mine in part.runs], params)
            at_C, targets_C = of_U[its] - start, part.targets_U[its]
            found.append(
                checkpoint(self._block, h_SD[rows], at_C, targets_C, head, use_reentrant=False)
            )
        return torch.cat(found)

    def _block(
        self, h_CD: torch.Tensor, at_M: torch.Tensor, targets_M: torch.Tensor, head: Project
    ) -> torch.Tensor:
        """Made again in the backward pass, so that no logits are kept."""
        self._board.head = head
        return self._logits(h_CD).float().log_softmax(-1)[at_M, targets_M]

    def _logits(self, h_RD: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._head(inputs_embeds=h_RD[None], use_cache=False).logits[0]
        return out

    def _hidden(self, tokens_N: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        # A mask of ones keeps transformers from taking steps in the positions for packed sequences.
        out = self._base(
            input_ids=tokens_N[None],
            position_ids=positions_N[None],
            attention_mask=torch.ones_like(tokens_N)[None],
            use_cache=False,
        )
        h_ND: torch.Tensor = out.last_hidden_state[0]
        return h_ND


def _adding(adapters: Adapters | None) -> Project:
    """Products of sampling."""

    def project(key: tuple[int, str], x_NI: torch.Tensor, linear: nn.Linear) -> torch.Tensor:
        y_NO = F.linear(x_NI, linear.weight, linear.bias)
        return y_NO if adapters is None else adapters.add(*key, x_NI, y_NO)

    return project


def _learning(rows: Sequence[slice], params: Sequence[RunParams | None]) -> Project:
    """Products of training; ``rows`` are each run's, and may be none."""

    def project(key: tuple[int, str], x_NI: torch.Tensor, linear: nn.Linear) -> torch.Tensor:
        pairs = zip(rows, params, strict=True)
        adapters = [
            (s, p.fused[key]) for s, p in pairs if p and key in p.fused and s.start < s.stop
        ]
        return ops.linear(x_NI, linear.weight, linear.bias, adapters)

    return project


def _within(part: slice, block: slice) -> slice:
    """Where a stretch of rows lies in a block of them; nowhere: an empty one."""
    start, stop = (min(max(at, block.start), block.stop) for at in (part.start, part.stop))
    return slice(start - block.start, stop - block.start)


def _head(model: Any) -> Any:
    """The model without its decoder: hidden states in as ``inputs_embeds``, logits out."""
    head = copy.copy(model)
    head._modules = {**model._modules, model.base_model_prefix: _Given()}
    return head


class _Given(nn.Module):
    """Takes the decoder's place and gives what it is given."""

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> BaseModelOutputWithPast:
        return _Hidden(last_hidden_state=inputs_embeds)


class _Hidden(BaseModelOutputWithPast):
    """Whatever else a decoder of some family gives is nothing."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


def _recomputing(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return run
