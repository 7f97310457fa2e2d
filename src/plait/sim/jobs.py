"""Job: one run as a state machine, rollout side and training side.

    rollout → reward → (reference) → training → weight sync → the next

*sync* rolls out step i only from version i; *one-step* and *async(k)* from version i - 1 or i - k
on, so the two sides overlap. *async* also begins a rollout as soon as a device of its own has
nothing left of those before, without waiting for the longest sample elsewhere (AReaL). Updates are
done in the order of the steps.

Invariants: one update at a time, and one rollout unless it is *async*; a batch's version is at most
k behind the one that it updates; every step is done once. Left to others: when the run may
roll out (``gate``), when its updates run (``trainer``), where (``place``).
"""

from bisect import insort
from operator import attrgetter

from plait.core.ids import RunId, TenantId
from plait.core.plan import Wait
from plait.core.runs import Stage
from plait.core.view import RunView
from plait.profiles import kv
from plait.sim.fleet import Rollout
from plait.sim.heap import Heap
from plait.sim.lengths import StepDraw, draw_step
from plait.sim.outcome import JobOutcome
from plait.sim.place import Place
from plait.sim.portion import ToolSlots
from plait.sim.spec import JobSpec
from plait.sim.waited import Waited

BLOCK_TOKENS = 16
"""Tokens of a cache block, as in vLLM and in our own engine."""


class Job:
    """One job of the workload."""

    def __init__(self, spec: JobSpec, *, order: int, heap: Heap, seed: int, draws: int = 0) -> None:
        """``draws``: different draws of its steps; 0: each step has its own."""
        self.spec, self.order, self._heap, self._seed = spec, order, heap, seed
        self._draws = draws
        self._drawn: dict[int, StepDraw] = {}
        self.run_id = RunId(spec.name)
        self.place: Place | None = None
        self.rollout: Stage | None = None
        self.train: Stage | None = None
        self.end: Stage | None = None
        self.since_s = 0.0
        self.began_s: float | None = None
        self.step_ends_s: list[float] = []
        self.n_tokens = 0
        self.max_lag = 0
        self.served_s = 0.0
        """Device seconds."""
        self.kv = kv.KvProfile()
        self.alone_s = 0.0
        """Of a step; 0 where it is not known."""
        self.tools = ToolSlots(spec.tool.slots if spec.tool is not None else 0, heap)
        self.worst_blocks = _worst_blocks(spec)
        self.under_way: list[Rollout] = []
        self.updating: Rollout | None = None
        self._ready: list[Rollout] = []
        """By step."""
        self._in_reward = 0
        self._next_step = 0
        self._waited = Waited()
        self._view: tuple[object, RunView] | None = None
        self._staleness = {"sync": 0, "one-step": 1}.get(spec.pipeline, spec.staleness)

    @property
    def version(self) -> int:
        """Steps committed."""
        return len(self.step_ends_s)

    @property
    def stage(self) -> Stage:
        """As the live runtime tells it: the end, else the rollout side, else the training side."""
        return self.end or self.rollout or self.train or Stage.IDLE

    def view(self) -> RunView:
        """The run as a policy sees it; the same object until something in it changes."""
        seen = (self.stage, self.since_s, self.version, self.served_s, self.kv, self.alone_s)
        if self._view is None or self._view[0] != seen:
            self._view = seen, self._view_anew()
        return self._view[1]

    def _view_anew(self) -> RunView:
        recent = self.step_ends_s[-5:]
        tpts_s = (recent[-1] - recent[0]) / (len(recent) - 1) if len(recent) > 1 else 0.0
        return RunView(
            run_id=self.run_id,
            tenant_id=TenantId(self.spec.tenant),
            order=self.order,
            weight=self.spec.weight,
            priority=self.spec.priority,
            stage=self.stage,
            stage_since_s=self.since_s,
            step=self.version,
            served=self.served_s,
            kv_blocks=kv.expected_blocks(self.kv, self.worst_blocks),
            kv_blocks_worst=self.worst_blocks,
            tpts_s=tpts_s,
            alone_s=self.alone_s,
        )

    def advance(self) -> None:
        """Ask for what comes next, on either side."""
        if self.end is not None or self.place is None:
            return
        while self._may_roll_out():
            self.set_stage(rollout=Stage.WAIT_ROLLOUT)
            self.place.want_rollout(self)
        if self.updating is None and self._ready and self._ready[0].step == self.version:
            self.updating = rollout = self._ready.pop(0)
            if not rollout.trains:
                self.committed()
                return
            self.max_lag = max(self.max_lag, self.version - rollout.version)
            assert self.version - rollout.version <= self._staleness, self.run_id
            self.set_stage(train=Stage.WAIT_TRAIN)
            self.place.want_update(self, rollout)

    def _may_roll_out(self) -> bool:
        """Ask for the next rollout: there is one, it is not too far ahead, and nothing of the run
        is being rolled out, or there is an engine for more."""
        ahead = self._next_step - self.version
        if self._next_step == self.spec.steps or ahead > self._staleness or self.place is None:
            return False
        if self.rollout is None:
            return True
        waits = self.rollout is Stage.WAIT_ROLLOUT
        return self.spec.pipeline == "async" and not waits and self.place.idle

    def _drained(self) -> None:
        """An engine has no more of a rollout."""
        if self.spec.pipeline == "async":
            self.advance()

    def begin_rollout(self) -> None:
        """The next rollout may start."""
        assert self.place is not None
        now = self._heap.now
        if self.began_s is None:
            self.began_s = now
        draw = self._draw(self._next_step)
        rollout = Rollout(
            step=self._next_step,
            version=self.version,
            draw=draw,
            now=now,
            done=self._rolled,
            drained=self._drained,
        )
        self._next_step += 1
        self.under_way.append(rollout)
        self.served(0.0)
        self.set_stage(rollout=Stage.ROLLOUT)
        self.place.roll(self, rollout)

    def committed(self) -> None:
        """An update is done and its version can be rolled out from."""
        if self.end is not None:
            return
        self.updating = None
        self.step_ends_s.append(self._heap.now)
        self.set_stage(train=None)
        if self.version == self.spec.steps:
            self.finish(Stage.DONE)
        else:
            self.advance()

    def finish(self, stage: Stage) -> None:
        """The job is over, well or not."""
        if self.end is not None:
            return
        self.served(0.0)
        self.end = stage
        self._drawn.clear()
        for rollout in self.under_way:
            for portion in rollout.portions:
                portion.dropped = True
                portion.engine.take(portion)
        self.under_way, self.updating = [], None
        self.rollout = self.train = None
        if self.place is not None:
            place, self.place = self.place, None
            place.ended(self)

    def waits(self, wait: Wait | None) -> None:
        """Why it is not being served, from now on."""
        self._waited.on(wait.reason if wait is not None else "", self._heap.now)

    def served(self, device_s: float) -> None:
        """It is being served, and has been given so much."""
        self.served_s += device_s
        self.waits(None)

    def set_stage(self, **sides: Stage | None) -> None:
        """Change ``rollout`` or ``train``."""
        for side, stage in sides.items():
            setattr(self, side, stage)
        self.since_s = self._heap.now

    def outcome(self) -> JobOutcome:
        """What became of it."""
        return JobOutcome(
            name=self.spec.name,
            arrival_s=self.spec.arrival_s,
            began_s=self.began_s if self.began_s is not None else self.spec.arrival_s,
            step_ends_s=tuple(
                end_s
                for i, end_s in enumerate(self.step_ends_s)
                if not (i < len(self.spec.recorded) and self.spec.recorded[i].evaluates)
            ),
            finished_s=self.step_ends_s[-1] if self.step_ends_s else 0.0,
            tokens=self.n_tokens,
            waits_s=dict(self._waited.by_reason_s),
            max_lag=self.max_lag,
            ended=str(self.end or "unfinished"),
        )

    def _draw(self, step: int) -> StepDraw:
        if not self._draws:
            return draw_step(self.spec, step, self._seed)
        step %= self._draws
        if step not in self._drawn:
            self._drawn[step] = draw_step(self.spec, step, self._seed)
        return self._drawn[step]

    def _rolled(self, rollout: Rollout) -> None:
        now = self._heap.now
        rollout.ended_s = now
        draw, recorded = rollout.draw, rollout.draw.recorded
        rollout.n_tokens = draw.total_tokens(draw.group_size)
        if recorded is not None and recorded.trained_tokens is not None:
            rollout.n_tokens = recorded.trained_tokens
        self.n_tokens += sum(draw.prompts) * draw.group_size
        self.n_tokens += sum(portion.n_tokens for portion in rollout.portions)
        self.kv = kv.update(
            self.kv,
            kv.KvObservation(
                seconds=now - rollout.began_s,
                block_s=sum(p.held_s for p in rollout.portions) / BLOCK_TOKENS,
                peak_blocks=0,
                throttled=any(p.throttled for p in rollout.portions),
            ),
        )
        self.served_s += sum(portion.device_s for portion in rollout.portions)
        self.under_way.remove(rollout)
        self._in_reward += 1
        if not self.under_way:
            self.set_stage(rollout=Stage.REWARD)
        assert self.place is not None
        self.place.left_rollout(self, rollout)
        self._drained()
        reward_s = self.spec.reward_s if recorded is None else recorded.reward_s
        self._heap.after(reward_s, self._rewarded, rollout)

    def _rewarded(self, rollout: Rollout) -> None:
        if self.end is not None:
            return
        self._in_reward -= 1
        if not self.under_way and self.rollout is not Stage.WAIT_ROLLOUT:
            self.set_stage(rollout=Stage.REWARD if self._in_reward else None)
        insort(self._ready, rollout, key=attrgetter("step"))
        self.advance()


def _worst_blocks(spec: JobSpec) -> int:
    turns = len(spec.turns)
    returned = spec.tool.result.most if spec.tool is not None and spec.tool.result else 0
    return kv.worst_case_blocks(
        n_prompts=spec.groups,
        group_size=spec.samples,
        prompt_tokens=spec.prompt.most,
        max_new_tokens=turns * spec.response.most + (turns - 1) * returned,
        block_size=BLOCK_TOKENS,
    )
