"""A synthetic launch directory with known figures, written through the recorder."""

import random
from itertools import pairwise
from pathlib import Path

from plait.core.ids import RunId, WorkerId
from plait.obs.intervals import mean_ci95
from plait.obs.recorder import Recorder
from plait.obs.records import Evaluation, LaunchInfo, SampleRecord, Span, StepMetrics

CORES = 2
PEAK_FLOPS = 1e11


def info(policy: str = "plait") -> LaunchInfo:
    return LaunchInfo(
        policy=policy,
        model="smollm2-135m",
        started_at=1_700_000_000.0,
        versions={"plait": "0.1.0"},
        machine={"cores": CORES, "device": "cpu"},
        peak_flops=PEAK_FLOPS,
    )


def two_job_launch(root: Path, *, tpts_s: float = 4.0, n_steps: int = 3) -> Path:
    """Two jobs that take turns; every figure can be told by hand.

    Job ``a`` joins at 1 s, job ``b`` at 2 s. A step of ``tpts_s`` is half rollout (both in one
    batch, three quarters of the tokens a's), a quarter training of a and a quarter training of b.
    """
    origin = 100.0
    recorder = Recorder(root, origin_s=origin)
    recorder.launch(info())
    a = recorder.added("a", RunId("run-a"), now=origin + 1)
    b = recorder.added("b", RunId("run-b"), now=origin + 2)
    quarter = tpts_s / 4
    for step in range(1, n_steps + 1):
        t = origin + 2 + (step - 1) * tpts_s
        for job in (a, b):
            job.event("stage", now=t, stage="rollout")
            job.event("stage", now=t + 2 * quarter, stage="wait_train")
        b.event("wait", now=t + 2 * quarter, reason="trainer_busy", detail="a trains", position=1)
        recorder.span(
            Span(
                worker=WorkerId("rollout"),
                kind="rollout",
                t0=t,
                t1=t + 2 * quarter,
                tokens=400,
                tokens_by_run={a.run_id: 300, b.run_id: 100},
                threads=2,
                flops=0.5 * PEAK_FLOPS * 2 * quarter,
                kv_blocks_used=10,
            )
        )
        for n, job in enumerate((a, b)):
            t0 = t + (2 + n) * quarter
            job.event("stage", now=t0, stage="train")
            recorder.span(
                Span(
                    worker=WorkerId("train"),
                    kind="train",
                    t0=t0,
                    t1=t0 + quarter,
                    run=job.run_id,
                    tokens=100,
                    threads=1,
                )
            )
            job.event("stage", now=t0 + quarter, stage="idle")
            job.metrics(
                StepMetrics(
                    step=step,
                    version=step,
                    reward_mean=0.1 * step,
                    reward_n=8,
                    reward_errors=1,
                    groups=2,
                    groups_skipped=1,
                    tokens_sampled=300 if n == 0 else 100,
                    loss=1.0 / step,
                    grad_norm=1.0,
                    lr=1e-3,
                    rollout_s=2 * quarter,
                    train_s=quarter,
                    wait_s=quarter,
                    step_s=tpts_s,
                ),
                now=t0 + quarter,
            )
    recorder.outside("tool", run=a.run_id, key="search", t0=origin + 2.5, t1=origin + 3.0)
    for step, hits in ((0, 10), (n_steps, 30)):
        seen = mean_ci95([1.0] * hits + [0.0] * (40 - hits))
        assert seen is not None
        a.evaluation(
            Evaluation(
                step=step,
                eval_reward_mean=seen.mean,
                eval_n=40,
                eval_ci95_low=seen.low,
                eval_ci95_high=seen.high,
            ),
            now=origin + 2 + step * tpts_s,
        )
    a.sample(
        SampleRecord(
            step=1,
            index=0,
            group=0,
            prompt="1+1=",
            completion="2",
            reward=1.0,
            error=None,
            why="exact",
            stop_reason="stop",
            n_turns=1,
            version=0,
        )
    )
    end = origin + 2 + n_steps * tpts_s
    a.event("finished", now=end, reason="")
    b.event("failed", now=end, reason="the loss is not finite: lower the learning rate")
    recorder.close()
    return root


def busy_launch(root: Path, *, n_jobs: int = 4, n_steps: int = 40, seed: int = 0) -> Path:
    """A launch that looks like a real one: uneven rollouts, tools, one trainer, evaluations."""
    rng = random.Random(seed)
    recorder = Recorder(root, origin_s=0.0)
    recorder.launch(info())
    names = ["arithmetic", "countdown", "multi-turn", "search-hotpot", "chain-sum", "gsm"]
    names += [f"job-{n}" for n in range(len(names), n_jobs)]
    jobs = [recorder.added(names[n], RunId(f"r{n}"), now=float(n)) for n in range(n_jobs)]
    trainer_free = 0.0
    rollouts: list[tuple[float, float, RunId]] = []
    clock = [float(n) for n in range(n_jobs)]
    for step in range(1, n_steps + 1):
        for n in sorted(range(n_jobs), key=lambda k: clock[k]):
            job, t = jobs[n], clock[n]
            if n == 1 and step % 4 == 0:
                job.event("stage", now=t, stage="wait_rollout")
                job.event("wait", now=t, reason="kv_budget", detail="", position=1)
                t += 2.0
            job.event("stage", now=t, stage="rollout")
            rollout_s = rng.uniform(3, 6) + 2 * n
            rollouts.append((t, t + rollout_s, job.run_id))
            t += rollout_s
            if n >= 2:
                job.event("stage", now=t, stage="reward")
                tool_s = rng.uniform(1, 4)
                recorder.outside("tool", run=job.run_id, key=str(step), t0=t, t1=t + tool_s)
                t += tool_s
            job.event("stage", now=t, stage="wait_train")
            start = max(t, trainer_free)
            if start > t:
                job.event("wait", now=t, reason="trainer_busy", detail="", position=1)
            train_s = rng.uniform(0.8, 1.6)
            job.event("stage", now=start, stage="train")
            recorder.span(
                Span(
                    worker=WorkerId("train"),
                    kind="train",
                    t0=start,
                    t1=start + train_s,
                    run=job.run_id,
                    tokens=900,
                    threads=1,
                    flops=0.45 * PEAK_FLOPS * train_s,
                )
            )
            wait_s, t = start - t, start + train_s
            trainer_free = t
            job.event("stage", now=t, stage="idle")
            reward = 0.15 + 0.6 * (1 - 0.94**step) + rng.gauss(0, 0.06)
            job.metrics(
                StepMetrics(
                    step=step,
                    version=step,
                    reward_mean=reward,
                    reward_n=8,
                    reward_errors=0,
                    groups=2,
                    groups_skipped=0,
                    tokens_sampled=int(300 * rollout_s),
                    loss=0.1,
                    grad_norm=1.0,
                    lr=1e-3,
                    rollout_s=rollout_s,
                    train_s=train_s,
                    wait_s=wait_s,
                    step_s=t - clock[n],
                ),
                now=t,
            )
            if step % 10 == 0 or step == 1:
                p = 0.15 + 0.6 * (1 - 0.94**step)
                seen = mean_ci95([float(rng.random() < p) for _ in range(64)])
                assert seen is not None
                row = Evaluation(
                    step=step,
                    eval_reward_mean=seen.mean,
                    eval_n=64,
                    eval_ci95_low=seen.low,
                    eval_ci95_high=seen.high,
                )
                job.evaluation(row, now=t)
            clock[n] = t
    _batched(recorder, rollouts)
    for n, job in enumerate(jobs):
        job.event("finished", now=clock[n], reason="")
    recorder.close()
    return root


def _batched(recorder: Recorder, rollouts: list[tuple[float, float, RunId]]) -> None:
    """The rollout worker: one span per interval in which the same runs roll out."""
    edges = sorted({edge for t0, t1, _ in rollouts for edge in (t0, t1)})
    for t0, t1 in pairwise(edges):
        running = [run for a, b, run in rollouts if a <= t0 and t1 <= b]
        if running:
            recorder.span(
                Span(
                    worker=WorkerId("rollout"),
                    kind="rollout",
                    t0=t0,
                    t1=t1,
                    tokens=int(200 * (t1 - t0) * len(running)),
                    tokens_by_run={run: 1 + int(200 * (t1 - t0)) for run in running},
                    threads=1,
                    flops=(0.1 + 0.05 * len(running)) * PEAK_FLOPS * (t1 - t0),
                    kv_blocks_used=40 * len(running),
                )
            )
