"""Watch: tells a view how a launch stands, a few times a second."""

import asyncio
import time

from rich.console import Console

from plait.core.runs import Stage
from plait.jobs.launch import Launch
from plait.obs.live import make_view
from plait.obs.snapshot import JobLine, Snapshot, WorkerLine
from plait.obs.standing import read_standing

REFRESH_S = 0.5
"""Often enough to look alive, rarely enough to cost nothing."""


async def watch(launch: Launch, *, quiet: bool = False) -> None:
    """Show the launch until cancelled; the last state is shown before it ends."""
    if quiet:
        return
    with make_view(Console()) as view:
        try:
            while True:
                view.update(snapshot(launch))
                await asyncio.sleep(REFRESH_S)
        finally:
            view.update(snapshot(launch))


def snapshot(launch: Launch) -> Snapshot:
    """How the launch stands now."""
    now = time.monotonic()
    return Snapshot(
        t=launch.recorder.t(now),
        policy=launch.sharing.name,
        model=launch.model,
        jobs=tuple(_job(launch, name) for name in launch.specs),
        workers=_workers(launch, now),
    )


def _job(launch: Launch, name: str) -> JobLine:
    spec = launch.specs[name]
    recorder = launch.recorder.found(name)
    if recorder is None:
        return _not_yet(launch, name)
    facts, last = launch.session.run(name).facts, recorder.standing
    ended_badly = facts.stage in (Stage.FAILED, Stage.CANCELLED)
    return JobLine(
        name=name,
        stage="evaluation" if facts.evaluating else facts.stage.value,
        step=facts.step,
        max_steps=spec.steps,
        version=facts.version or 0,
        reward=last.reward,
        eval_reward=last.eval_reward,
        tpts_s=last.step_s,
        tokens=facts.tokens,
        wait=f"{facts.wait.reason}: {facts.wait.detail}" if facts.wait else "",
        position=facts.wait.position if facts.wait else 0,
        error=facts.reason if ended_badly else "",
    )


def _not_yet(launch: Launch, name: str) -> JobLine:
    """A job that is about to begin, or to go on; or that has ended before it could."""
    step, outcome = launch.begun(name), launch.outcomes().get(name)
    last = read_standing(launch.recorder.layout.job(name), step)
    return JobLine(
        name=name,
        stage=outcome.stage.value if outcome else "resuming" if step else "starting",
        step=step,
        max_steps=launch.specs[name].steps,
        reward=last.reward,
        eval_reward=last.eval_reward,
        error=outcome.reason if outcome else "",
    )


def _workers(launch: Launch, now: float) -> tuple[WorkerLine, ...]:
    head = launch.session.head
    lines = []
    for worker_id, handle in head.pool.workers.items():
        span = head.last_spans.get(worker_id)
        busy = span is not None and now - span.t1 < 2 * REFRESH_S
        lines.append(
            WorkerLine(
                name=worker_id,
                doing=span.kind if span and busy else "idle",
                jobs=tuple(span.tokens_by_run) if span and busy else (),
                tokens_per_s=span.tokens / max(span.t1 - span.t0, 1e-9) if span and busy else 0.0,
                threads=round(span.threads) if span and busy else 0,
                busy_share=head.busy_s.get(worker_id, 0.0) / max(now - head.started_s, 1e-9),
                kv_blocks_used=span.kv_blocks_used if span and busy else 0,
                kv_blocks=head.settings.worker_kv_blocks if handle.config.rollout else 0,
            )
        )
    return tuple(lines)
