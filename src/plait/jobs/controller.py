"""Controller: the RL loop of one job: collect, learn, publish, evaluate, until done.

Strictly on-policy at ``staleness: 0``: a step's trajectories are drawn from the run's committed
version and trained on at once; overlap comes from other runs (MARLaaS §4.4). With ``staleness: k``
the next batches are drawn while this one trains; batch b is drawn no earlier than step b-k was
committed, so no trajectory lags more than k versions. How much less is a matter of timing, but for
deterministic mode, where it is drawn from the version of step b-k and no other.

Everything that decides the data is a function of the step number and the job's seed, so the state
that a resume needs is the committed version and the number of steps in it.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict, dataclass

from plait.core.errors import EngineError, RewardError
from plait.core.runs import Stage
from plait.jobs.collect import Batch, Collected, collect, record
from plait.jobs.context import JobContext
from plait.jobs.episode import Episode
from plait.jobs.evaluate import evaluate
from plait.jobs.learn import Learned, learn
from plait.obs.records import StepMetrics

NO_SIGNAL_STEPS = 20
"""Steps without any signal at the very beginning after which a job is ended: it would only burn
the machine."""

UNSCORED_STEPS = 3
"""Steps in a row in which every sample failed: one may be a bad minute, three are a fault."""


@dataclass(slots=True, kw_only=True)
class Errors:
    """How many of a job's training samples were errors, and the first of them."""

    n: int = 0
    of: int = 0
    first: str = ""

    def add(self, episodes: Sequence[Episode]) -> None:
        """Count a step's samples."""
        found = [e.error for e in episodes if e.error is not None]
        self.n, self.of = self.n + len(found), self.of + len(episodes)
        self.first = self.first or (found[0] if found else "")

    @property
    def most(self) -> bool:
        return 2 * self.n > self.of

    def __str__(self) -> str:
        return f"{self.n} of {self.of} samples were errors, the first of them: {self.first}"


class RLController:
    """GRPO and its relatives on one run."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._recent: deque[float] = deque(maxlen=context.spec.target_window or 1)
        self._ready = asyncio.Event()
        self._collecting = asyncio.Lock()
        self._step = 0
        self._versions: deque[int] = deque(maxlen=context.spec.staleness + 1)
        """After the last steps, up to ``_step``; where the job begins, its first."""
        self._evaluated: int | None = None
        self._fruitless = 0
        self._unscored = 0
        self._errors = Errors()

    async def run(self) -> tuple[Stage, str]:
        """Drive the job to its end."""
        lag = self._context.spec.staleness
        await self._take_up()
        await self._evaluate_if_due()
        if not self._finished():
            batches = self._on_policy() if lag == 0 else self._ahead(lag)
            async with contextlib.aclosing(batches):
                async for collected in batches:
                    await self._update(collected)
                    if self._finished():
                        break  # and so give up what is drawn ahead: the evaluation need not wait
                    await self._evaluate_if_due()
            await self._evaluate_if_due()
        if self._fruitless and not self._reached():
            raise EngineError(self._no_signal())
        return Stage.DONE, self._why_finished()

    async def _take_up(self) -> None:
        """Go on from the committed step; its line is written if the launch died before it."""
        context, progress = self._context, await self._context.client.progress()
        self._step = int(progress.get("step", 0))
        self._versions.extend(progress.get("versions", [context.client.version]))
        self._recent.extend(progress.get("recent", []))
        self._fruitless = int(progress.get("fruitless", 0))
        self._unscored = int(progress.get("unscored", 0))
        self._errors = Errors(**progress.get("errors", {}))
        if context.account.has_evaluation:
            self._evaluated = self._step
        if not context.account.has_step and "row" in progress:
            context.recorder.metrics(StepMetrics(**progress["row"]), now=context.now())

    async def _on_policy(self) -> AsyncGenerator[Collected, None]:
        while True:
            yield await self._collect(self._step)

    async def _ahead(self, lag: int) -> AsyncGenerator[Collected, None]:
        """Batches drawn by a task that runs ahead of the updates by at most ``lag`` steps, and not
        beyond the job's last one."""
        queue: asyncio.Queue[Collected] = asyncio.Queue(maxsize=lag)

        async def draw() -> None:
            batch, end = self._step, self._context.spec.steps
            while end is None or batch < end:
                while batch - lag > self._step:
                    self._ready.clear()
                    await self._ready.wait()
                await queue.put(await self._collect(batch))
                batch += 1

        drawing = asyncio.create_task(draw())
        taking: asyncio.Task[Collected] | None = None
        try:
            while True:
                taking = asyncio.create_task(queue.get())
                await asyncio.wait({drawing, taking}, return_when=asyncio.FIRST_COMPLETED)
                if not taking.done():
                    drawing.result()
                yield await taking
        finally:
            for task in (drawing, taking):
                if task is not None:
                    task.cancel()
            await asyncio.gather(*filter(None, (drawing, taking)), return_exceptions=True)

    async def _collect(self, step: int) -> Collected:
        spec = self._context.spec
        batch = Batch(
            split="train",
            first=step * spec.groups,
            n_groups=spec.groups,
            n_samples=spec.samples,
            tag=("train", step),
            version=self._version_of(step) if self._context.deterministic else None,
        )
        async with self._collecting:
            return await collect(self._context, batch)

    def _version_of(self, batch: int) -> int:
        """The version after step ``batch - staleness``, or the first that there was."""
        ago = self._step - (batch - self._context.spec.staleness)
        return self._versions[max(-len(self._versions), -1 - ago)]

    async def _update(self, collected: Collected) -> None:
        """One step: train on a batch and commit what it did.

        Samples are written before the commit and cut by a resume if it never came; the step's line
        is committed with it, so that a resume can write what a crash kept back.
        """
        context, started = self._context, self._context.now()
        step, rewards = self._step + 1, collected.rewards
        mean = sum(rewards) / len(rewards) if rewards else None
        if mean is not None:
            self._recent.append(mean)
        self._unscored = 0 if rewards else self._unscored + 1
        self._errors.add(collected.episodes)
        for episode in collected.episodes:
            record(context, episode, step, "train")

        def row(learned: Learned) -> StepMetrics:
            return _row(collected, learned, step, mean, context.now() - started)

        def progress(learned: Learned) -> dict[str, object]:
            return {
                "step": step,
                "recent": list(self._recent),
                "score": sum(self._recent) / len(self._recent) if self._recent else None,
                "fruitless": self._after(learned),
                "unscored": self._unscored,
                "errors": asdict(self._errors),
                "versions": [*self._versions, learned.version][-self._context.spec.staleness - 1 :],
                "row": asdict(row(learned)),
            }

        learned = await learn(context, collected, step, progress=progress)
        self._fruitless = self._after(learned)
        self._step = step
        self._versions.append(learned.version)
        self._ready.set()
        context.recorder.metrics(row(learned), now=context.now())
        if self._unscored >= UNSCORED_STEPS:
            errors = sorted({e.error or "no reward function applied" for e in collected.episodes})
            raise RewardError(
                f"no sample of the last {self._unscored} steps has a reward: {errors[0]}"
            )
        if self._fruitless >= NO_SIGNAL_STEPS:
            raise EngineError(self._no_signal())

    def _after(self, learned: Learned) -> int:
        """Steps without signal: counted only until the first update, for a policy that has learned
        all has none either."""
        return 0 if learned.version else self._fruitless + 1

    def _no_signal(self) -> str:
        no_signal = f"no group had any signal in the first {self._fruitless} steps"
        if self._errors.most:
            return f"{self._errors}; so {no_signal}: mend that first"
        mean = sum(self._recent) / len(self._recent) if self._recent else 0.0
        others = f"; {self._errors}" if self._errors.n else ""
        return (
            f"{no_signal} (all samples of a group earned the same, {mean:g} in the end): use an "
            f"easier task, more samples or a higher temperature{others}"
        )

    def _finished(self) -> bool:
        spec = self._context.spec
        if spec.steps is not None and self._step >= spec.steps:
            return True
        return self._reached()

    def _reached(self) -> bool:
        spec = self._context.spec
        full = len(self._recent) == self._recent.maxlen
        return (
            spec.target_reward is not None
            and full
            and sum(self._recent) / len(self._recent) >= spec.target_reward
        )

    def _why_finished(self) -> str:
        if self._reached():
            return f"reached its target reward after {self._step} steps"
        return f"finished {self._step} steps"

    async def _evaluate_if_due(self) -> None:
        """Before the first step (if wanted), after the last, every so often between; once each."""
        section = self._context.spec.evaluation
        if section is None or self._evaluated == self._step:
            return
        every = section.every
        due = section.at_start if self._step == 0 else bool(every) and self._step % every == 0
        if due or self._finished():
            async with self._collecting:
                await evaluate(self._context, self._step)
            self._evaluated = self._step


def _row(
    collected: Collected, learned: Learned, step: int, mean: float | None, update_s: float
) -> StepMetrics:
    m, episodes = learned.metrics, collected.episodes
    return StepMetrics(
        step=step,
        version=learned.version,
        reward_mean=mean,
        reward_n=len(collected.rewards),
        reward_errors=sum(e.reward is None for e in episodes),
        groups=learned.groups,
        groups_skipped=learned.groups_skipped,
        tokens_sampled=collected.n_sampled,
        loss=m.get("loss:sum"),
        grad_norm=m.get("grad_norm:mean"),
        lr=learned.lr,
        staleness=learned.staleness,
        kl=m.get("kl_ref:mean"),
        sampler_trainer_logprob_max_diff=m.get("logprob_diff:max"),
        rollout_s=collected.rollout_s,
        reward_s=collected.reward_s,
        reference_s=learned.reference_s,
        train_s=learned.train_s,
        publish_s=learned.publish_s,
        wait_s=collected.wait_s,
        step_s=collected.wait_s + collected.rollout_s + collected.reward_s + update_s,
        extra={
            "turns_mean": sum(e.n_turns for e in episodes) / len(episodes),
            "tokens_trained": float(learned.tokens_trained),
            "clip_fraction": m.get("clip_fraction:mean", 0.0),
        },
    )
