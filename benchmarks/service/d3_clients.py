"""D3: 1, 2 and 4 clients of one server, against SkyRL tx in turns and a plain loop.

"train": steps of 4 × 128 tokens with cross-entropy; "sample": 4 prompts × 4 samples of up to 64
tokens; "loop": snapshot, 4 × 4 samples of 32 tokens, gradient, step, each client at its own speed.
Both servers are up and get the same two cores; while one is driven the other is idle.
"""

import json
from contextlib import ExitStack
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.figure import Measured
from benchmarks.live.launches import spread
from benchmarks.service.clients import NEWEST, OLDEST, drive, plain
from benchmarks.service.servers import CORES, Served, plait_serve, skyrl, until_idle

NS = (1, 2, 4)
PHASES = ("train", "sample", "loop")
ROUNDS = 1
"""SkyRL takes a quarter of an hour for one, most of it in compiling; what is timed is repeated
within it, by steps and by clients."""
STEPS, WARM_UP = 3, 2
"""As many for both: a shape that JAX has yet to compile would weigh more among fewer."""
TRAINED, SAMPLED, PLAIN = 5.0, 4.0, 1.0
MAY_FALL, SLOWEST = 0.05, 1.2
AT_ONCE = (4, 2)
"""Sequences at a time that the plain loop is tried with; the faster counts."""
SHAPE = {"batch": 4, "seq": 128, "rank": 8}
ADAPTERS = 6
"""Of theirs, one of which it keeps: four clients and a spare."""

Rows = dict[int, list[dict[str, Any]]]


def measure() -> Measured:
    """The least of all ratios over their bars."""
    ours: Rows = {n: [] for n in NS}
    theirs: Rows = {n: [] for n in NS}
    plains: list[float] = []
    with ExitStack() as stack:
        us, them = stack.enter_context(plait_serve()), stack.enter_context(skyrl(adapters=ADAPTERS))
        for served in (us, them):
            until_idle(served)
        for _ in range(ROUNDS):
            plains.append(max(_plain(us, at_once) for at_once in AT_ONCE))
            for n in NS:
                ours[n].append(_drive(us, n, NEWEST))
                theirs[n].append(_drive(them, n, OLDEST))
    return judge(ours, theirs, plains)


def judge(ours: Rows, theirs: Rows, plains: list[float]) -> Measured:
    """The figure of the rows."""
    most = max(NS)
    us = {p: {n: median(r[p]["tok_s"] for r in ours[n]) for n in NS} for p in PHASES}
    them = {p: {n: median(r[p]["tok_s"] for r in theirs[n]) for n in NS} for p in PHASES}
    at_plain = median(plains)
    slowest = {p: _slowest(ours[most], p) for p in PHASES}
    falls = {p: _fall(us[p]) for p in PHASES}
    ratios = {
        "trained_at_4": us["train"][most] / them["train"][most] / TRAINED,
        "sampled_at_4": us["sample"][most] / them["sample"][most] / SAMPLED,
        "loop_trained_and_sampled_at_4": us["loop"][most] / them["loop"][most] / SAMPLED,
        "plain_at_1": us["train"][1] / at_plain / PLAIN,
        "total_with_more_clients": min(falls.values()) / (1 - MAY_FALL),
        "slowest_client": SLOWEST / max(slowest.values()),
    }
    return Measured(
        value=min(ratios.values()),
        ok=min(ratios.values()) >= 1,
        spread=max(spread(r[p]["tok_s"] for r in ours[n]) for n in NS for p in PHASES),
        detail={
            "ratios_over_bars": ratios,
            "tok_s": us,
            "skyrl_tok_s": them,
            "plain_trained_tok_s": at_plain,
            "slowest_over_middle": slowest,
            "skyrl_slowest_over_middle": {p: _slowest(theirs[most], p) for p in PHASES},
            "least_total_with_more_clients": falls,
        },
    )


def _drive(served: Served, n: int, sdk: str) -> dict[str, Any]:
    told = {**SHAPE, "n": n, "phases": PHASES, "steps": STEPS, "warmup": WARM_UP}
    return drive(served, "clients.py", sdk=sdk, **told)


def _plain(served: Served, at_once: int) -> float:
    told = json.dumps({"model": served.model_dir, **SHAPE, "steps": STEPS, "at_once": at_once})
    return float(plain("plain_training.py", told, threads=CORES)["tok_s"])


def _fall(by_n: dict[int, float]) -> float:
    """The least ratio of a total to that of fewer clients."""
    return min(by_n[b] / by_n[a] for a, b in pairwise(NS))


def _slowest(rows: list[dict[str, Any]], phase: str) -> float:
    """The slowest client's median step over the middle one's, the median of the rounds."""
    steps = [row[phase]["median_step_s"] for row in rows]
    return median(max(s) / median(s) for s in steps)
