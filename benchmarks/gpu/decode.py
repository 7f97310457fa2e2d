"""G1: decode on a GPU, with four adapters and without, recorded and not, against plain
``transformers``."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.engine.adapters import random_adapter
from benchmarks.engine.decode import RANKS
from benchmarks.figure import Measured
from benchmarks.gpu.models import GPU, Shape, make, missing_device
from plait.core.ids import OpId, RunId
from plait.core.operations import Sample, SamplingParams
from plait.engines.torch.rollout import TorchRollout


def measure() -> Measured:
    """Ratio at the largest batch without adapters; the rest is shown."""
    return decode(GPU) if torch.cuda.is_available() else missing_device()


def decode(shape: Shape) -> Measured:
    """The same on any device."""
    folder = make(shape)
    adapters = [random_adapter(folder, rank) for rank in RANKS]
    reference = _reference(folder, shape)
    detail: dict[str, dict[str, float]] = {}
    for n in shape.batches:
        g = torch.Generator().manual_seed(n)
        prompts = torch.randint(3, shape.vocab // 2, (n, shape.context), generator=g).tolist()
        none, four = (_ours(folder, shape, prompts, a) for a in ((), adapters))
        eager, four_eager = (_ours(folder, shape, prompts, a, graphs=False) for a in ((), adapters))
        theirs = _transformers(reference, shape, prompts)
        detail[str(n)] = {
            "ratio": none / theirs,
            "adapters_share": four / none,
            "graphs_gain": none / eager,
            "graphs_gain_adapters": four / four_eager,
            "ours_tok_s": none,
            "eager_tok_s": eager,
            "transformers_tok_s": theirs,
        }
    value = detail[str(shape.batches[-1])]["ratio"]
    return Measured(value=value, ok=value >= 1, detail=detail)


def _ours(
    folder: Path,
    shape: Shape,
    prompts: Sequence[list[int]],
    adapters: Sequence[str],
    *,
    graphs: bool = True,
) -> float:
    n = len(prompts)
    engine = TorchRollout(
        folder,
        n_blocks=n * -(-(shape.context + shape.new + 8) // 16),
        block_size=16,
        max_seqs=n,
        max_batch_tokens=max(8192, n),
        dtype=shape.dtype,
        device=shape.device,
        graphs=graphs,
    )
    for i, path in enumerate(adapters):
        engine.load_adapter(RunId(f"r{i}"), 1, path)
    params = SamplingParams(max_tokens=shape.new, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        run = (RunId(f"r{i % len(adapters)}"), 1) if adapters else (RunId("base"), None)
        op = Sample(
            op_id=OpId(str(i)), run_id=run[0], version=run[1], prompt=tuple(prompt), params=params
        )
        engine.add(op)
    seconds = []
    while engine.has_work():
        took, step = timed(engine.step, shape.device)
        if step.n_prefill_tokens == 0 and step.n_tokens == n:
            seconds.append(took)
    return n / median(seconds)


def _reference(folder: Path, shape: Shape) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=shape.dtype).to(shape.device)


@torch.inference_mode()
def _transformers(model: Any, shape: Shape, prompts: Sequence[list[int]]) -> float:
    tokens = torch.tensor(prompts, device=shape.device)
    out = model(tokens, use_cache=True, logits_to_keep=1)
    seconds = []
    for _ in range(shape.new):
        drawn = torch.multinomial(out.logits[:, -1].float().softmax(-1), 1)
        took, out = timed(
            lambda drawn=drawn, past=out.past_key_values: model(
                drawn, past_key_values=past, use_cache=True
            ),
            shape.device,
        )
        seconds.append(took)
    return len(prompts) / median(seconds)


def timed(work: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Seconds until the device has done ``work``, and what it gave."""
    start = time.perf_counter()
    out = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, out
