"""Moves: which samples under way go on at another rollout worker.

The lengths of samples have a long tail, so one worker may have drawn all of its own while another
is full. Then half of the difference moves

- if so many samples wait at the fuller worker for want of room: nothing of them has been computed,
  so nothing is lost;
- if the idle worker has cores of its own, as soon as what is gained is more than what it costs:

      gain = SPLIT_GAIN · (tokens left) · (seconds of a step)

  since with half of its samples gone each further step is shorter by that part, against the time
  that it takes to bring their keys and values along, by copy or by computing them again (JigsawRL's
  ΔT > 0, with its M as the cost; there tails are merged to free a device).

Where workers lend each other their cores the idle one's are in use already, and samples that run
stay: a batch in one process with all cores is faster than its halves in two (measured).

Invariants: no move is undone by the next; nothing goes to a worker where samples wait, or beyond
its room; the newest go, which have most left and least to be brought.

Left to others: where a sample begins (``placement``), and how it travels (``runtime.samples``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from plait.core.plan import MovesPlan
from plait.core.view import MovableSample, MovesView
from plait.policies.protocol import State

SPLIT_SAMPLES = 16
"""Difference from which samples that run may move; less is what ``placement`` leaves on purpose."""

SPLIT_GAIN = 0.25
"""By which steps are shorter after such a move: 8 samples against 16, SmolLM2 on one core, take 104
against 142 ms; 16 against 32 gain a third."""

COPY_BYTES_PER_S = 3e8
"""Keys and values out of a cache, through two sockets, into another (measured, one core each)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvenOut:
    """Move from the fullest worker to the idlest where that shortens the tail."""

    name: str = "even"

    def decide(self, view: MovesView, state: State, now: float) -> tuple[MovesPlan, State]:
        """At most one group of samples, from one worker to one other."""
        source = max(view.workers, key=lambda w: (w.n_samples, w.worker_id))
        target = min(view.workers, key=lambda w: (w.n_samples, w.worker_id))
        more = source.n_samples - target.n_samples
        most = min(more // 2, view.max_seqs - target.n_samples)
        mine = [s for s in view.samples if s.worker_id == source.worker_id]
        chosen = [] if target.n_waiting else _newest(mine, most)
        if not chosen:
            return MovesPlan(), state
        reason, kv = f"{source.n_waiting} of {source.n_samples} samples have no room", False
        if source.n_waiting < most:
            if view.lends or more < SPLIT_SAMPLES:
                return MovesPlan(), state
            tokens = sum(s.tokens_known for s in chosen)
            copy_s = tokens * view.kv_bytes_per_token / COPY_BYTES_PER_S
            cost_s = min(copy_s, tokens * view.s_per_token)
            gain_s = SPLIT_GAIN * max(s.tokens_left for s in chosen) * source.step_s
            if gain_s <= cost_s:
                return MovesPlan(), state
            reason = f"{more} samples more, gains {gain_s:.2g} s, costs {cost_s:.2g} s"
            kv = copy_s <= cost_s
        plan = MovesPlan(
            op_ids=tuple(s.op_id for s in chosen),
            source=source.worker_id,
            target=target.worker_id,
            kv=kv,
            reason=reason,
        )
        return plan, state


@dataclass(frozen=True, slots=True, kw_only=True)
class StayAll:
    """Off: every sample ends where it began."""

    name: str = "off"

    def decide(self, view: MovesView, state: State, now: float) -> tuple[MovesPlan, State]:
        """Stay."""
        return MovesPlan(), state


def _newest(samples: Sequence[MovableSample], most: int) -> list[MovableSample]:
    """The last ones, ``most`` in all; a request of several goes whole or stays."""
    chosen: list[MovableSample] = []
    for sample in reversed(samples):
        if sample.n <= most:
            chosen.append(sample)
            most -= sample.n
    return chosen
