"""Client sessions, their samplers, jobs and events on every database."""

import pytest

from plait.core.errors import NotFound, StoreError
from plait.core.ids import LOCAL_TENANT, JobId, RunId, TenantId
from plait.store.jobs import JobStatus
from plait.store.samplers import SamplerRow
from plait.store.store import Store

RUN, ANN = RunId("run-1"), TenantId("ann")


@pytest.fixture
def open_store(store: Store) -> Store:
    for n, session_id in enumerate(("s-1", "s-2")):
        store.sessions.open(session_id, tenant_id=LOCAL_TENANT, told={"tags": ["a"]}, now=1.0 + n)
    return store


def sampler(store: Store, n: int, *, session_id: str = "s-1", version: int = 3) -> SamplerRow:
    return store.samplers.open(
        f"{session_id}:sample:{n}",
        session_id=session_id,
        tenant_id=LOCAL_TENANT,
        base_model="m",
        run_id=RUN,
        version=version,
        path=f"samplers/{n}",
        now=float(n),
    )


def test_a_session_is_kept_with_what_its_client_told(store: Store) -> None:
    row = store.sessions.open("s-1", tenant_id=ANN, told={"tags": ["a"]}, project_id="p", now=2.0)
    assert store.sessions.get("s-1") == row
    assert store.tenants.get(ANN).created_at == 2.0
    with pytest.raises(StoreError, match="already"):
        store.sessions.open("s-1", tenant_id=ANN, told={}, now=3.0)
    assert store.sessions.find("s-9") is None
    with pytest.raises(NotFound, match="no session s-9"):
        store.sessions.get("s-9")


def test_the_first_reason_for_which_a_session_ended_stays(open_store: Store) -> None:
    sessions = open_store.sessions
    sessions.finish("s-1", reason="errored", detail="x", now=5.0)
    row = sessions.finish("s-1", reason="success", now=6.0)
    assert (row.reason, row.detail, row.ended_at) == ("errored", "x", 5.0)
    assert [s.session_id for s in sessions.live()] == ["s-2"]
    with pytest.raises(NotFound):
        sessions.finish("s-9", reason="success", now=6.0)


def test_sessions_are_paged_newest_first(open_store: Store) -> None:
    sessions = open_store.sessions
    sessions.open("s-3", tenant_id=ANN, told={}, now=9.0)
    assert [s.session_id for s in sessions.of_tenant(LOCAL_TENANT)] == ["s-2", "s-1"]
    page = sessions.of_tenant(LOCAL_TENANT, limit=1, offset=1)
    assert [s.session_id for s in page] == ["s-1"]
    assert (sessions.n_of_tenant(LOCAL_TENANT), sessions.n_of_tenant(ANN)) == (2, 1)


def test_a_sampler_asked_for_again_is_the_original(open_store: Store) -> None:
    first = sampler(open_store, 0, version=3)
    assert sampler(open_store, 0, version=4) == first
    assert open_store.samplers.get("s-1:sample:0") == first
    with pytest.raises(NotFound, match="no sampler"):
        open_store.samplers.get("s-1:sample:9")


def test_a_freed_sampler_lives_no_more(open_store: Store) -> None:
    samplers = open_store.samplers
    for n, version in enumerate((3, 4, 4)):
        sampler(open_store, n, version=version)
    sampler(open_store, 0, session_id="s-2", version=7)
    assert [s.version for s in samplers.live()] == [3, 7, 4, 4]
    samplers.free("s-1:sample:1", now=9.0)
    samplers.free("s-1:sample:1", now=10.0)
    assert samplers.get("s-1:sample:1").freed_at == 9.0
    assert [s.version for s in samplers.live()] == [3, 7, 4]
    assert [s.sampler_id for s in samplers.free_session("s-1", now=11.0)] == [
        "s-1:sample:0",
        "s-1:sample:2",
    ]
    assert samplers.free_session("s-1", now=12.0) == []
    assert [s.sampler_id for s in samplers.live()] == ["s-2:sample:0"]
    assert len(samplers.of_sessions(["s-1"])) == 3
    assert len(samplers.of_sessions(["s-1", "s-2"])) == 4
    assert samplers.of_sessions([]) == []


def test_a_sampler_follows_a_newer_version(open_store: Store) -> None:
    sampler(open_store, 0, version=3)
    row = open_store.samplers.follow("s-1:sample:0", version=4, path="x")
    assert (row.version, row.path) == (4, "x")
    assert open_store.samplers.live() == [row]


def test_nothing_belongs_to_a_session_that_does_not_exist(open_store: Store) -> None:
    with pytest.raises(StoreError):
        sampler(open_store, 0, session_id="s-9")
    assert open_store.samplers.live() == []


def test_a_job_is_queued_once_and_ends_once(store: Store) -> None:
    jobs, job = store.jobs, JobId("j-1")
    row = jobs.submit(job, tenant_id=ANN, name="a", spec={"steps": 2}, now=1.0)
    assert jobs.submit(job, tenant_id=ANN, name="a", spec={"steps": 2}, now=2.0) == row
    with pytest.raises(StoreError, match="another job"):
        jobs.submit(job, tenant_id=ANN, name="a", spec={"steps": 3}, now=2.0)
    assert jobs.set_status(job, JobStatus.RUNNING, run_id=RUN, now=3.0).run_id == RUN
    assert [j.job_id for j in jobs.list(tenant_id=ANN, live=True)] == [job]
    jobs.set_status(job, JobStatus.CANCELLED, reason="by ann", now=4.0)
    row = jobs.set_status(job, JobStatus.DONE, now=5.0)
    assert (row.status, row.reason, row.updated_at) == (JobStatus.CANCELLED, "by ann", 4.0)
    assert jobs.list(live=True) == []
    assert jobs.list(tenant_id=LOCAL_TENANT) == []
    assert jobs.list() == [row]
    with pytest.raises(NotFound, match="no job j-9"):
        jobs.set_status(JobId("j-9"), JobStatus.DONE, now=1.0)


def test_a_tenants_jobs_are_found_by_name(store: Store) -> None:
    for number, (tenant, name) in enumerate(((ANN, "a"), (LOCAL_TENANT, "a"), (ANN, "b"))):
        job = JobId(f"j-{9 - number}")
        store.jobs.submit(job, tenant_id=tenant, name=name, spec={}, now=float(number))
    again = store.jobs.submit(JobId("j-1"), tenant_id=ANN, name="a", spec={}, now=9.0)
    assert [row.job_id for row in store.jobs.named(ANN, "a")] == ["j-9", "j-1"]
    assert store.jobs.named(ANN, "a")[-1] == again
    assert store.jobs.named(ANN, "c") == store.jobs.named(ANN, "a\0") == []


def test_events_are_read_in_order_by_whom_they_concern(store: Store) -> None:
    events = store.events
    first = events.add("started", run_id=RUN, tenant_id=ANN, detail={"n": 1}, now=1.0)
    second = events.add("stopped", run_id=RunId("run-2"), now=2.0)
    third = events.add("stopped", run_id=RUN, job_id=JobId("j"), now=3.0)
    assert first < second < third
    assert [e.event_id for e in events.after(0)] == [first, second, third]
    assert [e.event_id for e in events.after(first, run_id=RUN)] == [third]
    assert events.after(tenant_id=ANN)[0].detail == {"n": 1}
    assert [e.event_id for e in events.after(job_id=JobId("j"))] == [third]
    assert [e.event_id for e in events.after(limit=1)] == [first]
    assert events.prune(before=2.5) == 2
    assert [e.event_id for e in events.after()] == [third]
