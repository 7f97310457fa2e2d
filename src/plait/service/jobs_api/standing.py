"""Standing: where a job is, from its launch while it is in one, from the store afterwards."""

from plait.core.errors import NotFound, StoreError
from plait.core.ids import RunId
from plait.jobs.spec import JobSpec
from plait.obs.layout import JobLayout, LaunchLayout
from plait.obs.standing import read_standing
from plait.runtime.facts import RunFacts
from plait.service.jobs_api.desk import Desk
from plait.service.jobs_api.views import JobView, WhyView, iso
from plait.service.ports import House, Waiting
from plait.store.jobs import JobRow
from plait.store.rows import RunRow

BY_LAUNCH = "starting"
"""Stage of a job whose run is not made yet."""


def layout_of(house: House, row: JobRow) -> JobLayout:
    """Where a job's files lie; NotFound while its base model is not served."""
    return LaunchLayout(house.place(model_of_job(row))).job(row.job_id)


def model_of_job(row: JobRow) -> str:
    """The base model of a job, of any version's."""
    return str(row.spec.get("model", ""))


def _n_steps(row: JobRow) -> int | None:
    """Steps that were asked for; none if this version cannot read that."""
    try:
        return JobSpec.model_validate(row.spec).steps
    except ValueError:
        return None


def _reward(house: House, row: JobRow, run: RunRow | None) -> float | None:
    """Mean of the last committed step. Its line is committed with it; only of a controller that
    commits none the file is read, and where that is damaged there is no figure."""
    step = _step(run)
    if run is None or not step:
        return None
    if "row" in run.progress:
        found: float | None = run.progress["row"].get("reward_mean")
        return found
    try:
        return read_standing(layout_of(house, row), step).reward
    except (NotFound, StoreError, OSError):
        return None


def _step(run: RunRow | None) -> int:
    return int(run.progress.get("step", 0)) if run is not None else 0


def facts_of(desk: Desk, row: JobRow) -> RunFacts | None:
    """The live facts of a job's run, if it has any."""
    launch = desk.launch_of(row)
    if launch is None or not launch.session.has_run(row.job_id):
        return None
    return launch.session.run(row.job_id).facts


def job_view(house: House, desk: Desk, row: JobRow, run: RunRow | None) -> JobView:
    """One job."""
    facts = facts_of(desk, row)
    launch = desk.launch_of(row)
    recorder = launch.recorder.found(row.job_id) if launch is not None else None
    step = _step(run)
    if facts is not None:
        step = max(step, facts.step)
    reward = recorder.standing.reward if recorder is not None else _reward(house, row, run)
    return JobView(
        job_id=row.job_id,
        run_id=row.job_id,
        name=row.name,
        model=model_of_job(row),
        status=row.status.value,
        reason=row.reason or desk.waits(row).reason,
        stage=_stage(row, facts, launched=launch is not None),
        step=step,
        steps=_n_steps(row),
        reward=reward,
        created_at=iso(row.created_at),
        updated_at=iso(row.updated_at),
    )


def why_view(house: House, run_id: str, facts: RunFacts, now: float) -> WhyView:
    """What a live run waits for: its tenant's limits first, then what the policies said."""
    hold = house.access.limits.hold(facts.spec.tenant_id)
    wait = facts.wait
    stage = "paused" if facts.paused else "evaluation" if facts.evaluating else facts.stage.value
    if hold is not None:
        word, reason, position = "quota", hold.reason, 0
    elif wait is not None:
        word, reason, position = wait.reason, wait.detail or wait.reason, wait.position
    else:
        word, reason, position = (
            ("paused", "paused by its owner", 0) if facts.paused else ("", "", 0)
        )
    pace = facts.pace.tpts_s
    return WhyView(
        run_id=run_id,
        stage=stage,
        waiting_for=word,
        reason=reason or facts.reason,
        position=position or None,
        expected_s=hold.retry_after_s if hold is not None else pace if word else None,
        since_s=max(0.0, now - facts.since_s),
    )


def why_asked(run_id: str, waiting: Waiting) -> WhyView:
    """What the requests of a client's model wait for that is not with the workers."""
    word = "quota" if waiting.state == "paused_rate_limit" else "place"
    return WhyView(
        run_id=run_id,
        stage=BY_LAUNCH,
        waiting_for=word if waiting.reason else "",
        reason=waiting.reason or "what was asked of it is about to begin",
        position=waiting.position or None,
        expected_s=None,
        since_s=None,
    )


def why_job(house: House, desk: Desk, row: JobRow, now: float) -> WhyView:
    """What a job waits for."""
    facts = facts_of(desk, row)
    if facts is not None and not facts.stage.ended:
        return why_view(house, row.job_id, facts, now)
    waits = desk.waits(row)
    return WhyView(
        run_id=row.job_id,
        stage=_stage(row, facts, launched=desk.launch_of(row) is not None),
        waiting_for="place" if waits.reason else "",
        reason=waits.reason or row.reason,
        position=waits.position or None,
        expected_s=None,
        since_s=None,
    )


def run_facts(house: House, base_model: str, run_id: RunId) -> RunFacts:
    """Live facts of a client's model; NotFound if it is asleep."""
    launch = house.launched(base_model)
    if launch is None or not launch.session.has_run(run_id):
        raise NotFound(f"run {run_id} is asleep")
    return launch.session.run(run_id).facts


def _stage(row: JobRow, facts: RunFacts | None, *, launched: bool) -> str:
    if facts is None or row.status.ended:
        return BY_LAUNCH if launched else row.status.value
    if facts.paused:
        return "paused"
    return "evaluation" if facts.evaluating else facts.stage.value
