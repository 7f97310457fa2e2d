"""B11: decode with four adapters in the batch against vLLM's CPU build with the same."""

import json
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.engine.adapters import random_adapter
from benchmarks.engine.decode import BATCHES, NEW, RANKS, THREADS, model_dir, ours, prompts
from benchmarks.figure import Measured
from benchmarks.live.launches import spread
from benchmarks.peers.environment import VLLM

BARS = {8: 1.8, 32: 2.0, 64: 2.2}
REPEATS = 2


def measure() -> Measured:
    """The least ratio over its bar; the two engines take turns."""
    folder = Path(tempfile.mkdtemp(prefix="plait-bench-"))
    (folder / "prompts.json").write_text(json.dumps({n: prompts(n) for n in BATCHES}))
    adapters = [random_adapter(model_dir(), rank) for rank in RANKS]
    arguments = [str(model_dir()), str(folder / "prompts.json"), str(NEW), *adapters]
    theirs: dict[int, list[float]] = {n: [] for n in BATCHES}
    own: dict[int, list[float]] = {n: [] for n in BATCHES}
    for _ in range(REPEATS):
        seconds = VLLM.run("vllm_decode.py", arguments, threads=THREADS)["seconds"]
        for n in BATCHES:
            theirs[n].append(n / seconds[str(n)])
            own[n].append(ours(n, RANKS))
    detail, shares = {}, []
    for n, bar in BARS.items():
        ratios = [a / b for a, b in zip(own[n], theirs[n], strict=True)]
        shares.append(median(ratios) / bar)
        detail[str(n)] = {
            "ratio": median(ratios),
            "bar": bar,
            "spread": spread(ratios),
            "ours_tok_s": median(own[n]),
            "vllm_tok_s": median(theirs[n]),
        }
    return Measured(value=min(shares), ok=min(shares) >= 1, detail=detail)
