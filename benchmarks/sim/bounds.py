"""Bounds: what no schedule of a setting can beat.

Two of them, and the larger counts. *Chain*: a job's steps one after the other, each stage as fast
as its devices allow; rollout and updates overlap as far as the pipeline lets them. *Work*: what all
jobs need of a resource, over its capacity. A resource is a set of slices that one kind of work is
done on; where runs share slices in parts, capacity is what the slowdown model lets two sub-stages
get done together at best.

A rollout's share of work is counted as if all its samples decoded in one batch from the first to
the last: weights are read no more often than the longest sample asks for. So bounds hold whatever
the policy merges, but nobody reaches them.

Whoever met them would know all lengths ahead, and put the longest samples where nobody disturbs
them. ``Blind`` is what is left of the bound without that: each job as it runs by itself on the same
devices, samples divided as they come. It is no strict bound, as merging can beat it.

Left to others: the exact optimum of small instances (``exact``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from benchmarks.sim.sensitivity import COMMITTED, Models
from plait.core.ids import RunId, WorkerId
from plait.core.substages import Kind, Substage
from plait.policies.board import SPLITS
from plait.sim.costs.protocol import Costs
from plait.sim.lengths import StepDraw, draw_step
from plait.sim.schemes import Scheme, isolated
from plait.sim.simulate import simulate
from plait.sim.spec import JobSpec, Setting
from plait.sim.world import RESERVE

SEGMENTS = 32
"""Of a batch's course, between which rows end: within each, a step's time is at least that of mean
rows and mean context (it is convex in both)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One step of one job, alone."""

    longest_s: float
    """Of the sample that takes longest by itself, tools included."""
    rollout_s: float
    """Slice seconds of all samples, in one batch."""
    fixed_s: float
    """Part of it that a batch with others' rows would share: reading weights, overheads."""
    update_s: float
    """Reference, gradient and weight sync, on all its slices together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Seconds that the setting takes at least."""

    chain_s: float
    work_s: float
    resource: str
    """The one that ``work_s`` is of."""

    @property
    def lower_s(self) -> float:
        return max(self.chain_s, self.work_s)

    @property
    def binding(self) -> str:
        """Which of them."""
        return "longest chain" if self.chain_s >= self.work_s else f"work on {self.resource}"


def blind(setting: Setting, scheme: Scheme, models: Models = COMMITTED) -> Bounds:
    """Chain and work of the jobs as each runs alone on the devices that it may use."""
    first_s = min(spec.arrival_s for spec in setting.jobs)
    chain_s = rolled_s = updated_s = 0.0
    trainers: set[str] = set()
    for spec in setting.jobs:
        shared_base = spec.weights == "lora" and scheme.lora == "shared"
        apart = scheme.full == "multiplexed" and not shared_base
        alone = replace(spec, train_devices=_on(setting, scheme, spec)) if apart else spec
        outcome = simulate(
            replace(setting, jobs=(alone,)),
            isolated() if apart else scheme,
            models.costs_of,
            mode="fluid",
        )
        chain_s = max(chain_s, spec.arrival_s - first_s + outcome.makespan_s)
        for span in outcome.spans:
            if not span.kind.rolls_out:
                trainers.add(span.device)
                updated_s += span.t1 - span.t0
            elif not shared_base or scheme.full != "multiplexed":
                # A shared base decodes others' rows in the same time.
                rolled_s += span.t1 - span.t0
    if scheme.full == "multiplexed":
        width = max(spec.tensor_parallel for spec in setting.jobs)
        n_slices = sum(group.n_devices for group in setting.cluster.groups) // width
        work_s = _together_s(rolled_s, updated_s, models) / n_slices
        return Bounds(chain_s=chain_s, work_s=work_s, resource="all")
    return Bounds(chain_s=chain_s, work_s=updated_s / len(trainers), resource="training")


def bounds(setting: Setting, scheme: Scheme, models: Models = COMMITTED) -> Bounds:
    """Of the setting, on the devices that the scheme gives to each kind of work."""
    seed = int(setting.options.get("seed", 0))
    first_s = min(spec.arrival_s for spec in setting.jobs)
    chain_s = 0.0
    rolled: dict[str, float] = {}
    updated: dict[str, float] = {}
    n_slices: dict[str, float] = {}
    for spec in setting.jobs:
        place = _place(setting, scheme, spec, models)
        steps = list(_steps(spec, place, models, seed))
        chain_s = max(chain_s, spec.arrival_s - first_s + _chain_s(spec, place, steps))
        for name, n in ((place.roll_name, place.n_roll), (place.train_name, place.n_train)):
            n_slices[name] = max(n_slices.get(name, 0.0), place.slices.get(name, float(n)))
        rollout_s = sum(step.rollout_s for step in steps)
        if place.batches_with_others:
            rollout_s -= sum(step.fixed_s for step in steps)
        rolled[place.roll_name] = rolled.get(place.roll_name, 0.0) + rollout_s
        update_s = sum(step.update_s for step in steps) * place.n_train
        updated[place.train_name] = updated.get(place.train_name, 0.0) + update_s
    work_s, resource = 0.0, ""
    shared = scheme.full == "multiplexed"
    for name, n in n_slices.items():
        a, b = rolled.get(name, 0.0), updated.get(name, 0.0)
        needed_s = (_together_s(a, b, models) if shared else a + b) / n
        if needed_s > work_s:
            work_s, resource = needed_s, name
    return Bounds(chain_s=chain_s, work_s=work_s, resource=resource)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a job's work may be done, and with which costs."""

    roll: Costs
    train: Costs
    n_roll: int
    """Slices that one of its rollouts may use."""
    n_train: int
    roll_name: str
    train_name: str
    slices: dict[str, float]
    """Of each resource in all."""
    batches_with_others: bool = False


def _place(setting: Setting, scheme: Scheme, spec: JobSpec, models: Models) -> _Place:
    group = max(setting.cluster.groups, key=lambda g: g.n_devices)
    tp, device = spec.tensor_parallel, group.device
    lora = spec.weights == "lora" and scheme.lora == "shared"

    def costs(n: int) -> Costs:
        return models.costs_of(spec.model, device, tp, weights=spec.weights, replicas=max(1, n))

    whole = sum(g.n_devices for g in setting.cluster.groups) // tp
    n_roll = max(1, spec.rollout_devices // tp)
    n_train = max(1, _on(setting, scheme, spec) // tp)
    if lora and scheme.side_by_side:
        named = setting.options.get("lora_groups", {}).get(spec.model)
        groups = [g for g in setting.cluster.groups if named is None or g.name in named]
        n = sum(g.n_devices for g in groups) // tp
        return _Place(
            roll=costs(1),
            train=costs(n),
            n_roll=n,
            n_train=n,
            roll_name="all",
            train_name="all",
            slices={"all": float(whole)},
            batches_with_others=True,
        )
    if lora:
        together = scheme.sharing.topology == "collocated" or whole == 1
        roll_n, train_n = (whole, whole) if together else (whole - n_train, n_train)
        names = ("all", "all") if together else ("rollout", "training")
        return _Place(
            roll=costs(1),
            train=costs(train_n),
            n_roll=roll_n,
            n_train=train_n,
            roll_name=f"{spec.model} {names[0]}",
            train_name=f"{spec.model} {names[1]}",
            slices={f"{spec.model} {names[0]}": roll_n, f"{spec.model} {names[1]}": train_n},
            batches_with_others=True,
        )
    if not spec.rollout_devices:
        n_roll = n_train
    if scheme.full == "shared-train":
        pool = whole - sum(s.rollout_devices // tp for s in setting.jobs)
        private = f"rollout of {spec.name}"
        return _Place(
            roll=costs(1),
            train=costs(n_train),
            n_roll=n_roll,
            n_train=n_train,
            roll_name=private,
            train_name="training pool",
            slices={private: n_roll, "training pool": max(pool, n_train)},
        )
    return _Place(
        roll=costs(1),
        train=costs(n_train),
        n_roll=n_roll,
        n_train=n_train,
        roll_name="all",
        train_name="all",
        slices={"all": float(whole)},
    )


def _on(setting: Setting, scheme: Scheme, spec: JobSpec) -> int:
    """Devices that a job trains on: those of its node group where runs share all of them."""
    if scheme.full != "multiplexed" or spec.rollout_devices:
        return spec.train_devices
    if spec.weights == "lora" and scheme.lora == "shared":
        return spec.train_devices
    return max(group.n_devices for group in setting.cluster.groups)


def _steps(spec: JobSpec, place: _Place, models: Models, seed: int) -> Iterator[Work]:
    for step in range(spec.steps):
        draw = draw_step(spec, step, seed)
        tokens = -(-draw.total_tokens(spec.samples) // place.n_train)
        samples = -(-draw.n_samples // place.n_train)
        update_s = place.train.train_s(tokens, samples) + place.train.sync_s()
        if spec.reference:
            update_s += place.train.reference_s(tokens, samples)
        lengths, contexts = _rows(spec, draw)
        prefill = sum(draw.prompts) + sum(map(sum, draw.results))
        prefill_s = place.roll.prefill_s(prefill, n_samples=draw.n_samples)
        most = max(lengths)
        yield Work(
            longest_s=max(
                n * place.roll.decode_s(1, round(context)) + sum(waits_s)
                for n, context, waits_s in zip(lengths, contexts, draw.waits_s, strict=True)
            ),
            rollout_s=prefill_s
            + max(
                _batch_s(lengths, contexts, place.roll),
                _cached_s(spec, draw, lengths, contexts, place.roll),
            ),
            fixed_s=most * place.roll.decode_s(1, 0),
            update_s=update_s,
        )


def _rows(spec: JobSpec, draw: StepDraw) -> tuple[list[int], list[float]]:
    """Of each sample: tokens that it draws, and what it looks at on average meanwhile."""
    lengths, contexts = [], []
    for sample, turns in enumerate(draw.responses):
        context = float(draw.prompts[sample // spec.samples])
        seen, n = 0.0, sum(turns)
        for turn, drawn in enumerate(turns):
            seen += drawn * (context + drawn / 2.0)
            context += drawn
            if turn < len(draw.results[sample]):
                context += draw.results[sample][turn]
        lengths.append(n)
        contexts.append(seen / max(1, n))
    return lengths, contexts


def _batch_s(lengths: Sequence[int], contexts: Sequence[float], costs: Costs) -> float:
    """All rows decode together from the first step on, each to its end."""
    rows = sorted(zip(lengths, contexts, strict=True))
    total_s, at, i = 0.0, 0, 0
    size = max(1, len(rows) // SEGMENTS)
    while i < len(rows):
        j = min(len(rows), i + size)
        end = rows[j - 1][0]
        if end > at:
            part = [min(n, end) - at for n, _ in rows[i:]]
            mean_rows = sum(part) / (end - at)
            looked_at = sum(p * context for p, (_, context) in zip(part, rows[i:], strict=True)) / (
                end - at
            )
            total_s += (end - at) * costs.decode_s(max(1, int(mean_rows)), int(looked_at))
        at, i = end, j
    return total_s


def _cached_s(
    spec: JobSpec, draw: StepDraw, lengths: Sequence[int], contexts: Sequence[float], costs: Costs
) -> float:
    """Slice seconds of a rollout whose cache is always full: what its rows hold, token by token,
    over the tokens of a cache, is the least number of forward steps. A group's prompt is held
    once."""
    pool = (costs.memory_bytes * (1.0 - RESERVE) - costs.weight_bytes) / costs.kv_bytes_per_token
    spared = 1.0 - 1.0 / spec.samples
    held = sum(
        n * (context - spared * draw.prompts[i // spec.samples])
        for i, (n, context) in enumerate(zip(lengths, contexts, strict=True))
    )
    steps = held / pool
    if steps <= 0:
        return 0.0
    looked_at = sum(n * context for n, context in zip(lengths, contexts, strict=True))
    return steps * costs.decode_s(max(1, int(sum(lengths) / steps)), int(looked_at / steps))


def _chain_s(spec: JobSpec, place: _Place, steps: Sequence[Work]) -> float:
    """Steps one after the other, or rollouts and updates each so where they overlap."""
    rolls = [max(w.longest_s, w.rollout_s / place.n_roll) + spec.reward_s for w in steps]
    if place.batches_with_others:
        rolls = [w.longest_s + spec.reward_s for w in steps]
    updates = [w.update_s for w in steps]
    if spec.pipeline == "sync":
        return sum(rolls) + sum(updates)
    return max(sum(rolls) + updates[-1], rolls[0] + sum(updates))


def _together_s(rollout_s: float, update_s: float, models: Models) -> float:
    """Slice seconds for both, when pairs run side by side as the slowdown model allows at best.

    A linear programme over what a slice may be doing, two constraints: at most two kinds of
    doing are in its optimum, so all pairs are tried.
    """
    doing = [(1.0, 0.0), (0.0, 1.0), *_side_by_side(models)]
    best_s = rollout_s + update_s
    for (r1, u1), (r2, u2) in combinations(doing, 2):
        det = r1 * u2 - r2 * u1
        if abs(det) < 1e-12:
            continue
        x1 = (rollout_s * u2 - update_s * r2) / det
        x2 = (update_s * r1 - rollout_s * u1) / det
        if x1 >= -1e-9 and x2 >= -1e-9:
            best_s = min(best_s, x1 + x2)
    return best_s


def _side_by_side(models: Models) -> Iterator[tuple[float, float]]:
    """Rollout and update work per second of a slice, of each pair and split; the rollout is the
    tail of a single row, which others disturb least."""
    worker = WorkerId("w")
    roll, update = (
        Substage(key=kind, run_id=RunId("r"), worker=worker, kind=kind, work_s=1.0, tokens=1)
        for kind in (Kind.DECODE, Kind.TRAIN)
    )
    for share in SPLITS:
        for own, other in ((roll, roll), (roll, update), (update, update)):
            a = 1.0 / models.slowdown(own, other, share, 1.0)
            b = 1.0 / models.slowdown(other, own, 1.0 - share, 1.0)
            rolls = (a if own is roll else 0.0) + (b if other is roll else 0.0)
            yield rolls, a + b - rolls
