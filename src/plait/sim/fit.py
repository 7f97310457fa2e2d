"""Fit: what a launch's spans say about how fast its machine was.

A forward step's time over its tokens (a prefilled token counts as a drawn one: on a CPU both go
through the same products), an update's time over its tokens, and both again with half of the cores,
which is what a worker has while another is busy. So one device of the simulation is the whole
machine, and the slowdown of a neighbour is the time on half the cores over the time on all.

Left to others: what was computed (``recorded``), costs of what no span shows (the roofline).
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log2
from statistics import median

from plait.core.errors import ConfigError
from plait.core.substages import Substage
from plait.obs.launch import Launch, Row, shares
from plait.profiles.slowdown import Analytic, Slowdown
from plait.sim.costs.measured import DecodePoint, Profile, interpolate, with_profiles
from plait.sim.costs.protocol import Costs
from plait.sim.costs.roofline import costs_of
from plait.sim.recorded import recorded_jobs

DEVICE = "cpu"
"""Whose roofline stands in for what was not measured (memory, moving state)."""

WHOLE, HALF = 0.9, 0.6
"""Share of the cores from which a span counts as one on all of them, and up to which as one on
half: spans in between had a neighbour for part of their time and tell neither."""

LEAST_S = 0.5
"""Seconds of spans that a point of the curve rests on: less is noise."""

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """``seconds = fixed_s + per_token_s · tokens`` of an update."""

    fixed_s: float
    per_token_s: float

    def at(self, tokens: float) -> float:
        return self.fixed_s + self.per_token_s * tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A machine's speed at one model."""

    model: str
    step: Points
    """Seconds of a forward step over its tokens, on all cores."""
    step_half: Points
    """On half of them; empty where no span shows it."""
    train: Line
    """On all cores."""
    train_slowdown: float | None
    """On half of the cores over all; ``None`` where no span shows it."""
    prefill_share: float = 1.0
    """Of the prompts' and replies' tokens, what was computed: the rest was in a cache already."""
    publish_s: float
    """From the end of an update to a version that can be drawn from, off the workers."""

    def costs(self) -> Callable[..., Costs]:
        """For ``simulate``: these where they say something, else the roofline."""
        (x0, y0), (x1, y1) = self.step[0], self.step[-1]
        slope = (y1 - y0) / (x1 - x0) if x1 > x0 else y1 / max(1.0, x1)
        profile = Profile(
            model=self.model,
            device=DEVICE,
            decode=tuple(
                DecodePoint(rows=max(1, round(x)), context=0, seconds=y) for x, y in self.step
            ),
            adapter_step_s=0.0,
            prefill_tokens_per_s=1.0 / max(slope * self.prefill_share, 1e-9),
            train_tokens_per_s=1.0 / max(self.train.per_token_s, 1e-9),
            train_overhead_s=self.train.fixed_s,
            sync_s=self.publish_s,
            offload_s=0.0,
            load_s=0.0,
        )
        return with_profiles([profile], costs_of)

    def slowdown(self) -> Slowdown:
        """For ``simulate``: half of the cores as measured, else computed."""
        return _Cores(self)


class _Cores:
    """Slowdown by cores: a power of the share, through what half of them costs. It may be below 1:
    a small model is faster on one core than on two that wait for each other."""

    def __init__(self, rates: Rates) -> None:
        self._rates, self._computed = rates, Analytic()

    def __call__(
        self, own: Substage, beside: Substage | None, compute: float, memory: float
    ) -> float:
        half = self._half(own)
        if half is None:
            return self._computed(own, beside, compute, memory)
        return float(compute ** -log2(half))

    def _half(self, own: Substage) -> float | None:
        if not own.kind.on_device:
            return 1.0
        rates = self._rates
        if not own.kind.rolls_out:
            return rates.train_slowdown
        if not rates.step_half:
            return None
        return interpolate(rates.step_half, own.tokens) / interpolate(rates.step, own.tokens)


def fit(launches: Sequence[Launch], *, model: str) -> Rates:
    """Rates of the machine that the launches ran on; ConfigError if they show no rollout on all of
    its cores, or no update."""
    steps: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}
    updates: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    publishes: list[float] = []
    for launch in launches:
        cores = float((launch.info.get("machine") or {}).get("cores") or 1)
        for span in launch.spans:
            side = _side(span, cores)
            if span["kind"] == "rollout" and span.get("steps") and side is not None:
                took_s = span["t1"] - span["t0"]
                steps[side].append((span["tokens"] / span["steps"], took_s, span["steps"]))
        for side, tokens, took_s in _updates(launch, cores):
            updates[side].append((tokens, took_s))
        publishes += [
            float(row["publish_s"])
            for job in launch.jobs
            for row in job.steps
            if row.get("publish_s")
        ]
    where = ", ".join(str(launch.root) for launch in launches)
    if not steps[True] or not updates[True]:
        raise ConfigError(
            f"{where} shows no work on all cores: record jobs alone (--policy sequential) to "
            "measure the machine"
        )
    train = line(updates[True])
    half_s = sum(took_s for _, took_s in updates[False])
    whole_s = sum(train.at(tokens) for tokens, _ in updates[False])
    return Rates(
        model=model,
        step=curve(steps[True]),
        step_half=curve(steps[False]) if steps[False] else (),
        train=train,
        train_slowdown=half_s / whole_s if whole_s > 0 else None,
        prefill_share=_prefill_share(launches, model),
        publish_s=median(publishes) if publishes else 0.0,
    )


def _prefill_share(launches: Sequence[Launch], model: str) -> float:
    """Tokens that forward steps computed beside those drawn, over those that samples brought: each
    group's prompt once, and what environments replied."""
    computed, drawn, brought = 0.0, 0, 0
    for launch in launches:
        computed += sum(s.get("tokens") or 0 for s in launch.spans if s["kind"] == "rollout")
        for job in recorded_jobs(launch, model=model):
            for step in job.spec.recorded:
                drawn += sum(map(sum, step.responses))
                brought += sum(step.prompts) + sum(map(sum, step.results))
    return min(1.0, max(0.0, computed - drawn) / brought) if brought else 1.0


def curve(steps: Iterable[tuple[float, float, float]]) -> Points:
    """Seconds of a forward step over its tokens, from (tokens of a step, seconds, steps): medians
    over bins of tokens, each twice as wide as the last, so long as they hold enough time. More
    tokens never take less time: bins that say otherwise are taken together."""
    bins: defaultdict[int, list[tuple[float, float, float]]] = defaultdict(list)
    for tokens, took_s, n in steps:
        bins[int(log2(max(1.0, tokens)))].append((tokens, took_s / n, n))
    kept = [
        spans for _, spans in sorted(bins.items()) if sum(s * n for _, s, n in spans) >= LEAST_S
    ]
    if not kept:  # a short launch: all of it is one point
        kept = [[span for spans in bins.values() for span in spans]]
    pooled: list[list[list[tuple[float, float, float]]]] = []
    for spans in kept:
        pooled.append([spans])
        while len(pooled) > 1 and _step_s(pooled[-1]) < _step_s(pooled[-2]):
            pooled[-2:] = [pooled[-2] + pooled[-1]]
    return tuple(
        (sum(tokens * n for tokens, _, n in spans) / sum(n for _, _, n in spans), _step_s(together))
        for together in pooled
        for spans in together
    )


def _step_s(bins: Iterable[Sequence[tuple[float, float, float]]]) -> float:
    """Median over all steps of the bins: what else ran on the machine for a while is no part of
    its speed."""
    spans = sorted(((s, n) for spans in bins for _, s, n in spans))
    sums = list(accumulate(n for _, n in spans))
    return spans[bisect_left(sums, sums[-1] / 2)][0]


def line(updates: Sequence[tuple[float, float]]) -> Line:
    """Least squares of seconds over tokens; neither part is negative."""
    n = len(updates)
    mean_x = sum(x for x, _ in updates) / n
    mean_y = sum(y for _, y in updates) / n
    spread = sum((x - mean_x) ** 2 for x, _ in updates)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in updates) / spread if spread > 0 else 0.0
    slope = max(0.0, slope)
    fixed_s = mean_y - slope * mean_x
    if fixed_s < 0.0 or slope == 0.0:
        return Line(fixed_s=0.0, per_token_s=mean_y / mean_x if mean_x > 0 else 0.0)
    return Line(fixed_s=fixed_s, per_token_s=slope)


def _side(span: Row, cores: float) -> bool | None:
    """True on all cores, False on half of them, ``None`` in between."""
    share = float(span.get("threads") or cores) / cores
    if share >= WHOLE:
        return True
    return False if share <= HALF else None


UPDATE_KINDS = ("train", "optim", "forward")


def _updates(launch: Launch, cores: float) -> Iterable[tuple[bool, float, float]]:
    """Side, tokens and seconds of each update that ran on one side throughout. Gradients of several
    runs in one pass are left out: whose time it was is not known."""
    spans: defaultdict[str, list[Row]] = defaultdict(list)
    for span in launch.spans:
        if span["kind"] in UPDATE_KINDS:
            for run in shares(span):
                spans[launch.name(run)].append(span)
    for job in launch.jobs:
        begin_s, mine, at = 0.0, spans[job.name], 0
        for row in job.steps:
            inside: list[Row] = []
            while at < len(mine) and mine[at]["t1"] <= row["t"] + 1e-6:
                if mine[at]["t0"] >= begin_s:
                    inside.append(mine[at])
                at += 1
            begin_s = float(row["t"])
            sides = {_side(one, cores) for one in inside}
            tokens = float(row.get("tokens_trained") or 0)
            alone = all(len(shares(one)) == 1 for one in inside)
            if tokens and len(sides) == 1 and alone and (side := sides.pop()) is not None:
                yield side, tokens, sum(one["t1"] - one["t0"] for one in inside)
