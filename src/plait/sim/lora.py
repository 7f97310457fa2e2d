"""LoRA pool: runs that share one base model's rollout engines and one trainer (MARLaaS §4).

All rollouts that the gate has admitted decode in one batch, each row with its run's adapter;
updates are done one run at a time as the dispatch policy says. The policies are those of the live
runtime, with the same views.

*disaggregated*: some devices roll out, the others train; on a single device, or where it is asked
for (``side_by_side``), all do both at once, each with weights of its own there. *collocated*: all
devices do both, and rollout waits while they train.
"""

from collections.abc import Callable, Sequence

from plait.core.errors import ConfigError
from plait.core.plan import Keep
from plait.core.runs import Stage
from plait.core.view import ToolWaitView
from plait.policies.protocol import Sharing, State
from plait.policies.residency import LeaveAll
from plait.profiles import turnover
from plait.sim.engine import Engine
from plait.sim.fleet import Fleet, Rollout
from plait.sim.gate import Gate
from plait.sim.jobs import BLOCK_TOKENS, Job
from plait.sim.operation import Operation
from plait.sim.row import Row
from plait.sim.slices import check_fits, hold_weights, make_engine
from plait.sim.spec import DeviceGroup, JobSpec
from plait.sim.trainer import Trainer
from plait.sim.worker import Division, Worker
from plait.sim.world import World

STATES_SHARE = 0.5
"""Most of a shared device's free memory that adapters' optimizer states may keep from the cache."""


class LoraPool:
    """One base model, shared."""

    def __init__(
        self,
        world: World,
        *,
        sharing: Sharing,
        model: str,
        groups: Sequence[DeviceGroup],
        specs: Sequence[JobSpec],
        side_by_side: bool = False,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        """``specs``: all LoRA jobs of this model. ``idle``: called when the last is over."""
        self._world, self._sharing = world, sharing
        self._left, self._idle = len(specs), idle
        tp = max(spec.tensor_parallel for spec in specs)
        device, n = groups[0].device, sum(group.n_devices for group in groups)
        if any(group.device != device for group in groups):
            raise ConfigError(f"the LoRA pool of {model} needs groups of one kind of device")
        self.n_devices = n
        both = sharing.topology == "collocated" or side_by_side or n == 1
        n_train = n if both else max(tp, max(spec.train_devices for spec in specs))
        n_roll = n if both else n - n_train
        if n_roll < tp or n_train % tp or n_roll % tp:
            raise ConfigError(
                f"the LoRA pool of {model} has {n} devices, {n_train} of them to train: with "
                f"tensor_parallel {tp} both parts must be a multiple of it; change the group's "
                "n_devices or train_devices"
            )
        self._costs = world.costs(model, device, tp, weights="lora", replicas=n_train // tp)
        name = f"{groups[0].name}/{model}"
        division: Division = "pause" if sharing.topology == "collocated" else "share"
        memory = self._costs.memory_bytes
        roll = [world.worker(f"{name}/{i}", tp, memory, division) for i in range(n_roll // tp)]
        train = roll
        if not both:
            train = [world.worker(f"{name}/train{i}", tp, memory) for i in range(n_train // tp)]
        for worker in (*roll, *(train if not both else ())):
            hold_weights(worker, "weights", self._costs, model)
        if both and sharing.topology == "disaggregated":
            for worker in train:
                hold_weights(worker, "weights/train", self._costs, model)
        self._check_state(train, specs)
        spare = 0
        if both:
            most = int(STATES_SHARE * min(worker.free_bytes for worker in roll))
            spare = max(self._costs.train_bytes, min(most, len(specs) * self._costs.train_bytes))
        self.engines = [make_engine(world, w, self._costs, spare_bytes=spare) for w in roll]
        for spec in specs:
            check_fits(spec, self.engines[0])
        self._fleet = Fleet(self.engines, world.heap)
        pool_tokens = sum(engine.pool_tokens for engine in self.engines)
        self.gate = Gate(
            sharing.admission,
            budget_blocks=int(world.options.get("kv_blocks", pool_tokens // BLOCK_TOKENS)),
            heap=world.heap,
            record=world.record,
            ask=world.ask,
        )
        self.trainer = Trainer(
            name="train",
            workers=train,
            policy=sharing.dispatch,
            heap=world.heap,
            record=world.record,
            ask=world.ask,
            may_merge=True,
            estimate=world.misjudged,
        )
        self._residency_state: State = {}
        self._leaves_all = isinstance(sharing.residency, LeaveAll)
        self._caches: dict[Engine, tuple[turnover.CacheProfile, int]] = {}

    def enter(self, job: Job) -> None:
        """A job has arrived."""
        job.place = self
        self.gate.enter(job)
        self.trainer.enter(job)
        job.advance()

    @property
    def idle(self) -> bool:
        return False

    def want_rollout(self, job: Job) -> None:
        self.gate.wait(job)

    def roll(self, job: Job, rollout: Rollout) -> None:
        residency = None if self._leaves_all or job.spec.tool is None else self._keep
        self._fleet.start(
            rollout, spec=job.spec, run=job.run_id, tools=job.tools, residency=residency
        )

    def left_rollout(self, job: Job, rollout: Rollout) -> None:
        self.gate.freed()

    def want_update(self, job: Job, rollout: Rollout) -> None:
        def sync() -> None:
            job.set_stage(train=Stage.TRAIN)
            self._world.heap.after(self._costs.sync_s(), committed)

        def committed(_: object) -> None:
            job.committed()
            self.gate.freed()

        def gradient() -> None:
            self.trainer.submit(self._operation(job, rollout, "ForwardBackward", sync))

        if job.spec.reference:
            self.trainer.submit(self._operation(job, rollout, "Forward", gradient))
        else:
            gradient()

    def ended(self, job: Job) -> None:
        self.gate.leave(job)
        self.trainer.leave(job)
        self.over()

    def over(self) -> None:
        """One job fewer is to come."""
        self._left -= 1
        if self._left == 0:
            self._idle()

    def _operation(self, job: Job, rollout: Rollout, kind: str, done) -> Operation:  # type: ignore[no-untyped-def]
        return Operation(
            job=job,
            kind=kind,
            tokens=rollout.n_tokens,
            samples=rollout.draw.n_samples,
            costs=self._costs,
            n_slices=len(self.trainer.workers),
            state_bytes=self._costs.train_bytes,
            done=done,
        )

    def _check_state(self, train: Sequence[Worker], specs: Sequence[JobSpec]) -> None:
        if min(worker.free_bytes for worker in train) < self._costs.train_bytes:
            raise ConfigError(
                f"job {specs[0].name}: the adapter's optimizer state does not fit beside "
                f"{specs[0].model}: raise train_devices or tensor_parallel"
            )

    def _keep(self, row: Row) -> Keep:
        """What becomes of a waiting sample's cache."""
        engine, now = row.portion.engine, self._world.now()
        profile, evicted = self._caches.get(engine, (turnover.CacheProfile(), 0))
        batch = engine.batch
        profile = turnover.update(
            profile,
            now=now,
            tokens=0,
            busy_s=0.0,
            n_evicted=(engine.idle.n_evicted - evicted) // BLOCK_TOKENS,
            idle_blocks=engine.idle.n_tokens // BLOCK_TOKENS,
        )
        self._caches[engine] = (profile, engine.idle.n_evicted)
        view = ToolWaitView(
            run_id=row.portion.run,
            tokens=row.context,
            expected_wait_s=row.portion.spec.tool.latency_s,
            recompute_s=self._costs.prefill_s(row.context, n_adapters=len(batch.adapters)),
            idle_blocks=profile.idle_blocks,
            evicted_per_s=turnover.evicted_per_s(profile, now),
        )
        before = self._residency_state
        plan, self._residency_state = self._sharing.residency.decide(view, before, now)
        self._world.record.decision("residency", self._sharing.residency, view, before, plan)
        return plan.keep
