"""Private plot: one run with rollout devices of its own, and a trainer of its own or a shared one.

With devices for both, rollout and training overlap as far as the pipeline allows. Without rollout
devices the run alternates on all it has: its optimizer state leaves the devices during rollout if
the cache would not fit beside it, as Verl does.

Left to others: which devices (``placer``), whose update is next (``trainer``).
"""

from collections.abc import Callable, Sequence

from plait.core.errors import ConfigError
from plait.sim.costs.protocol import Costs
from plait.sim.fleet import Fleet, Rollout
from plait.sim.jobs import Job
from plait.sim.longest import longest_sample
from plait.sim.operation import Operation
from plait.sim.repeats import Repeats
from plait.sim.slices import check_fits, hold_weights, make_engine
from plait.sim.trainer import Trainer
from plait.sim.worker import Worker
from plait.sim.world import World


class Plot:
    """Where one run is bound."""

    def __init__(
        self,
        world: World,
        *,
        job: Job,
        roll: Sequence[Worker],
        trainer: Trainer,
        train: Sequence[Worker],
        private: bool,
        roll_costs: Costs,
        train_costs: Costs,
        begin_s: float,
        committed: Callable[[Job, Rollout], None],
        ended: Callable[[Job], None],
    ) -> None:
        """``roll``: its rollout slices, which are ``train`` where it alternates. ``train``: its
        part of the trainer. ``private``: nobody else uses the trainer."""
        self._world, self._job, self._trainer = world, job, trainer
        self._train, self._private = train, private
        self._roll_costs, self._train_costs = roll_costs, train_costs
        self._committed, self._ended = committed, ended
        self._begin_s = begin_s
        spec = job.spec
        both = set(roll) & set(train)
        self._n_slices = max(1, spec.train_devices // spec.tensor_parallel)
        for worker in roll:
            hold_weights(worker, f"weights/{job.run_id}", roll_costs, spec.model)
        self._state_bytes = train_costs.train_bytes
        if not both:
            # Sharded weights; gathered layers are part of the reserve.
            self._state_bytes += -(-train_costs.weight_bytes // self._n_slices)
        # A worker may be wider than a slice, and holds several then.
        self._state_bytes *= -(-self._n_slices // len(train))
        room = min(worker.memory_bytes - worker.reserved["reserve"] for worker in train)
        if both:
            room = min(worker.free_bytes for worker in roll)
        if self._state_bytes > room:
            raise ConfigError(
                f"job {spec.name}: {self._state_bytes / 1e9:.0f} GB of {spec.model} and its "
                f"optimizer do not fit a slice with {room / 1e9:.0f} GB free: raise train_devices "
                "or tensor_parallel"
            )
        self._offload = False
        spare = 0
        if both:
            free = min(worker.free_bytes for worker in roll)
            wanted = longest_sample(spec) * -(-spec.groups * spec.samples // len(roll))
            self._offload = free - self._state_bytes < wanted * roll_costs.kv_bytes_per_token
            self._offload = self._offload and spec.pipeline == "sync"
            spare = 0 if self._offload else self._state_bytes
        self._engines = [
            make_engine(
                world,
                worker,
                roll_costs,
                name=f"rollout/{job.run_id}",
                spare_bytes=spare,
                owner=job.run_id,
            )
            for worker in roll
        ]
        check_fits(spec, self._engines[0])
        self._fleet = Fleet(self._engines, world.heap)
        # Where an update or another rollout may interrupt it, it does not go as it went before.
        draws = world.draws if not both or spec.pipeline == "sync" else 0
        draws = 0 if spec.pipeline == "async" else draws
        self._repeats = Repeats(
            job.run_id,
            self._engines,
            draws=draws,
            known=world.repeats,
            heap=world.heap,
            record=world.record,
        )

    def begin(self) -> None:
        """The job has its devices."""
        self._job.place = self
        self._trainer.enter(self._job, self._train)
        if self._begin_s > self._world.now():
            self._world.heap.at(self._begin_s, lambda _: self._job.advance())
        else:
            self._job.advance()

    @property
    def idle(self) -> bool:
        return self._fleet.idle

    def want_rollout(self, job: Job) -> None:
        job.begin_rollout()

    def roll(self, job: Job, rollout: Rollout) -> None:
        def anew(rollout: Rollout) -> None:
            self._fleet.start(rollout, spec=job.spec, run=job.run_id, tools=job.tools)

        self._repeats.start(rollout, anew)

    def left_rollout(self, job: Job, rollout: Rollout) -> None:
        self._repeats.ended(rollout)

    def want_update(self, job: Job, rollout: Rollout) -> None:
        self._cache(held=False)

        def updated() -> None:
            self._cache(held=True)
            self._committed(job, rollout)
            job.committed()

        def gradient() -> None:
            self._trainer.submit(self._operation(rollout, "ForwardBackward", updated))

        if job.spec.reference:
            self._trainer.submit(self._operation(rollout, "Forward", gradient))
        else:
            gradient()

    def ended(self, job: Job) -> None:
        self._trainer.leave(job)
        if self._private:
            for worker in self._train:
                self._trainer.stopped(worker)
        for engine in self._engines:
            engine.worker.release(f"kv/{engine.name}")
            engine.worker.release(f"weights/{job.run_id}")
            engine.worker.retire()
        self._ended(job)

    def _cache(self, *, held: bool) -> None:
        """Where the state is offloaded, cache and optimizer take turns in the same memory."""
        if not self._offload:
            return
        for engine in self._engines:
            n_bytes = engine.pool_tokens * self._roll_costs.kv_bytes_per_token if held else 0
            engine.worker.reserve(f"kv/{engine.name}", n_bytes)

    def _operation(self, rollout: Rollout, kind: str, done: Callable[[], None]) -> Operation:
        last = kind == "ForwardBackward"
        return Operation(
            job=self._job,
            kind=kind,
            tokens=rollout.n_tokens,
            samples=rollout.draw.n_samples,
            costs=self._train_costs,
            sync_s=self._train_costs.sync_s() if last else 0.0,
            n_slices=self._n_slices,
            state_bytes=self._state_bytes,
            offload=self._offload and last,
            done=done,
        )
