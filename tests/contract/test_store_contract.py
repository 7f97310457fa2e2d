"""What every store must do, whatever database lies under it: runs, mutations, versions."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from plait.core.errors import RunEnded, StoreError
from plait.core.ids import LOCAL_TENANT, RunId, TenantId
from plait.store.rows import MutationStatus, RunStatus
from plait.store.store import Store
from plait.store.usage import Used

RUN = RunId("run-1")
OTHER = RunId("run-2")


def commit(store: Store, version: int, seq: int, *, run_id: RunId = RUN, path: str = "") -> None:
    store.mutations.accept(run_id, seq, "optim_step", now=float(seq))
    store.mutations.commit_version(
        run_id,
        version,
        seq,
        path or f"versions/{version:06d}",
        result={"version": version},
        progress={"step": version},
        now=float(seq),
    )


def test_run_is_kept_with_its_owner_and_spec(store: Store) -> None:
    run = store.runs.get(RUN)
    assert (run.tenant_id, run.spec, run.status, run.progress) == (
        LOCAL_TENANT,
        {"rank": 8},
        RunStatus.ACTIVE,
        {},
    )
    assert [r.run_id for r in store.runs.list(tenant_id=LOCAL_TENANT)] == [RUN, OTHER]


def test_create_twice_answers_the_original_and_refuses_a_different_spec(store: Store) -> None:
    again = store.runs.create(RUN, tenant_id=LOCAL_TENANT, name=RUN, spec={"rank": 8}, now=9.0)
    assert again.created_at == 1.0
    with pytest.raises(StoreError, match="another id"):
        store.runs.create(RUN, tenant_id=LOCAL_TENANT, name=RUN, spec={"rank": 9}, now=9.0)
    with pytest.raises(StoreError, match="another owner"):
        store.runs.create(RUN, tenant_id=TenantId("other"), name=RUN, spec={"rank": 8}, now=9.0)


def test_status_and_reason_are_kept(store: Store) -> None:
    store.runs.set_status(RUN, RunStatus.FAILED, reason="the loss is not finite", now=5.0)
    run = store.runs.get(RUN)
    assert (run.status, run.reason, run.updated_at) == (
        RunStatus.FAILED,
        "the loss is not finite",
        5.0,
    )
    assert store.runs.get(OTHER).status is RunStatus.ACTIVE


def test_unknown_run_is_named(store: Store) -> None:
    ghost = RunId("ghost")
    for call in (
        lambda: store.runs.get(ghost),
        lambda: store.runs.set_status(ghost, RunStatus.DONE, now=1.0),
        lambda: store.mutations.accept(ghost, 1, "create", now=1.0),
    ):
        with pytest.raises(StoreError, match="no run ghost"):
            call()


def test_accept_is_new_once_then_answers_the_original(store: Store) -> None:
    assert store.mutations.accept(RUN, 1, "create", now=1.0).new
    assert not (pending := store.mutations.accept(RUN, 1, "create", now=2.0)).new
    assert pending.status is MutationStatus.ACCEPTED
    store.mutations.finish(RUN, 1, result={"path": "a"}, now=3.0)
    done = store.mutations.accept(RUN, 1, "create", now=4.0)
    assert (done.new, done.status, done.result) == (False, MutationStatus.DONE, {"path": "a"})


def test_gap_is_refused_and_leaves_nothing(store: Store) -> None:
    with pytest.raises(StoreError, match="next is 1"):
        store.mutations.accept(RUN, 2, "create", now=1.0)
    assert store.mutations.since(RUN, 0) == []
    assert store.mutations.accept(RUN, 1, "create", now=1.0).new


def test_number_used_for_another_kind_is_refused(store: Store) -> None:
    store.mutations.accept(RUN, 1, "create", now=1.0)
    with pytest.raises(StoreError, match="use number 2"):
        store.mutations.accept(RUN, 1, "optim_step", now=1.0)


def test_failed_operation_consumes_its_number(store: Store) -> None:
    store.mutations.accept(RUN, 1, "forward_backward", now=1.0)
    store.mutations.finish(RUN, 1, error="unknown loss 'x'", now=2.0)
    again = store.mutations.accept(RUN, 1, "forward_backward", now=3.0)
    assert (again.status, again.error) == (MutationStatus.FAILED, "unknown loss 'x'")
    assert store.mutations.accept(RUN, 2, "forward_backward", now=3.0).new


def test_numbers_belong_to_their_run(store: Store) -> None:
    store.mutations.accept(RUN, 1, "create", now=1.0)
    assert store.mutations.accept(OTHER, 1, "create", now=1.0).new
    assert [m.seq for m in store.mutations.since(OTHER, 0)] == [1]


def test_ended_run_refuses_with_its_reason_but_answers_what_it_did(store: Store) -> None:
    store.mutations.accept(RUN, 1, "create", now=1.0)
    store.mutations.finish(RUN, 1, now=1.0)
    store.runs.set_status(RUN, RunStatus.CANCELLED, reason="by its owner", now=2.0)
    with pytest.raises(RunEnded, match="cancelled: by its owner"):
        store.mutations.accept(RUN, 2, "optim_step", now=3.0)
    assert store.mutations.accept(RUN, 1, "create", now=3.0).status is MutationStatus.DONE


def test_finish_ends_once(store: Store) -> None:
    with pytest.raises(StoreError, match="never accepted"):
        store.mutations.finish(RUN, 1, now=1.0)
    store.mutations.accept(RUN, 1, "create", now=1.0)
    store.mutations.finish(RUN, 1, result={"loss": float("nan"), "x": (1,)}, now=2.0)
    store.mutations.finish(RUN, 1, result={"loss": float("nan"), "x": (1,)}, now=3.0)
    with pytest.raises(StoreError, match="ended already"):
        store.mutations.finish(RUN, 1, error="late", now=4.0)
    row = store.mutations.get(RUN, 1)
    assert row is not None
    assert (row.finished_at, row.result) == (2.0, {"loss": None, "x": [1]})


def test_commit_ends_the_mutation_and_saves_progress_and_usage(store: Store) -> None:
    store.mutations.accept(RUN, 1, "optim_step", now=1.0)
    store.mutations.commit_version(
        RUN,
        1,
        1,
        "versions/000001",
        result={"version": 1},
        progress={"step": 1, "rng": [1, 2]},
        used=[Used(kind="optim_step", device_s=0.5, tokens=7)],
        now=2.0,
    )
    assert store.runs.get(RUN).progress == {"step": 1, "rng": [1, 2]}
    latest = store.mutations.latest_version(RUN)
    assert latest is not None
    assert (latest.version, latest.seq, latest.path) == (1, 1, "versions/000001")
    assert store.mutations.accept(RUN, 1, "optim_step", now=3.0).result == {"version": 1}
    assert [(u.kind, u.device_s, u.tokens) for u in store.usage.of_tenant(LOCAL_TENANT)] == [
        ("optim_step", 0.5, 7)
    ]


def test_commit_without_progress_keeps_the_last(store: Store) -> None:
    commit(store, 1, 1)
    store.mutations.accept(RUN, 2, "load", now=2.0)
    store.mutations.commit_version(RUN, 2, 2, "b", now=2.0)
    assert store.runs.get(RUN).progress == {"step": 1}


@pytest.mark.parametrize("version", [0, 2, 3])
def test_version_that_does_not_rise_is_refused_whole(store: Store, version: int) -> None:
    commit(store, 3, 1)
    store.mutations.accept(RUN, 2, "optim_step", now=2.0)
    with pytest.raises(StoreError, match="only rise"):
        store.mutations.commit_version(
            RUN,
            version,
            2,
            "x",
            progress={"step": 9},
            used=[Used(kind="optim_step", device_s=1.0, tokens=1)],
            now=2.0,
        )
    row = store.mutations.get(RUN, 2)
    assert row is not None
    assert row.status is MutationStatus.ACCEPTED
    assert store.runs.get(RUN).progress == {"step": 3}
    assert store.usage.of_tenant(LOCAL_TENANT) == []


def test_commit_of_an_ended_mutation_leaves_no_version(store: Store) -> None:
    store.mutations.accept(RUN, 1, "optim_step", now=1.0)
    store.mutations.finish(RUN, 1, error="not finite", now=1.0)
    with pytest.raises(StoreError, match="ended already"):
        store.mutations.commit_version(RUN, 1, 1, "x", progress={"step": 1}, now=2.0)
    assert store.mutations.latest_version(RUN) is None
    assert store.runs.get(RUN).progress == {}


def test_commit_repeated_after_a_lost_answer_changes_nothing(store: Store) -> None:
    commit(store, 1, 1)
    again = store.mutations.commit_version(
        RUN, 1, 1, "versions/000001", progress={"step": 99}, now=50.0
    )
    assert again.created_at == 1.0
    assert store.runs.get(RUN).progress == {"step": 1}


def test_rewind_forgets_what_followed_the_last_version(store: Store) -> None:
    commit(store, 1, 1)
    store.mutations.accept(RUN, 2, "forward_backward", now=2.0)
    store.mutations.finish(RUN, 2, now=2.0)
    store.mutations.accept(RUN, 3, "optim_step", now=3.0)
    store.mutations.accept(OTHER, 1, "create", now=3.0)
    assert [m.seq for m in store.mutations.since(RUN, 1)] == [2, 3]
    assert store.mutations.rewind(RUN) == 2
    assert [[m.seq for m in store.mutations.since(r, 0)] for r in (RUN, OTHER)] == [[1], [1]]
    assert store.mutations.accept(RUN, 2, "forward_backward", now=4.0).new


def test_versions_are_forgotten_but_never_the_last(store: Store) -> None:
    for n in (1, 2, 3):
        commit(store, n, n)
    store.mutations.forget_versions(RUN, [1])
    assert [v.version for v in store.mutations.versions(RUN)] == [2, 3]
    with pytest.raises(StoreError, match="its last"):
        store.mutations.forget_versions(RUN, [2, 3])
    assert [v.version for v in store.mutations.versions(RUN)] == [2, 3]


def test_everything_is_there_after_reopening(url: str, store: Store) -> None:
    commit(store, 1, 1)
    store.close()
    with Store(url) as again:
        assert again.runs.get(RUN).progress == {"step": 1}
        assert [m.seq for m in again.mutations.since(RUN, 0)] == [1]


def test_two_writers_queue_for_the_lock(url: str, store: Store) -> None:
    failures: list[Exception] = []

    def write(run_id: RunId) -> None:
        try:
            with Store(url) as mine:
                for n in range(1, 21):
                    commit(mine, n, n, run_id=run_id)
        except StoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(r,)) for r in (RUN, OTHER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert failures == []
    assert [len(store.mutations.since(r, 0)) for r in (RUN, OTHER)] == [20, 20]


COMMITTER = """
import sys
from plait.store.store import Store
from plait.store.usage import Used

store = Store(sys.argv[1])
seq = 0
while True:
    for kind in ("forward_backward", "optim_step"):
        seq += 1
        store.mutations.accept("run-1", seq, kind, now=0.0)
        if kind == "forward_backward":
            store.mutations.finish("run-1", seq, result={"seq": seq}, now=0.0)
    version = seq // 2
    store.mutations.commit_version("run-1", version, seq, f"v{version}", now=0.0,
        result={"version": version}, progress={"step": version},
        used=[Used(kind="optim_step", device_s=1.0, tokens=1)])
    print(version, flush=True)
"""


@pytest.mark.parametrize("after", [1, 7, 20])
def test_kill_keeps_all_that_was_acknowledged_and_nothing_half_done(
    url: str, store: Store, after: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", COMMITTER, url],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert process.stdout is not None
    with process.stdout as output:
        for _ in range(after):
            acknowledged = int(output.readline())
        process.send_signal(signal.SIGKILL)
        rest = output.read()
    assert process.wait(timeout=30) == -signal.SIGKILL
    acknowledged = max([acknowledged, *(int(n) for n in rest.split())])
    store.close()
    with Store(url) as again:
        latest = again.mutations.latest_version(RUN)
        assert latest is not None
        # one more may have been committed than the pipe could tell
        assert latest.version in (acknowledged, acknowledged + 1)
        assert again.runs.get(RUN).progress == {"step": latest.version}
        assert [v.version for v in again.mutations.versions(RUN)] == list(
            range(1, latest.version + 1)
        )
        assert again.usage.of_tenant(LOCAL_TENANT)[0].tokens == latest.version
        log = again.mutations.since(RUN, 0)
        assert [m.seq for m in log] == list(range(1, len(log) + 1))
        committed = [m for m in log if m.seq <= latest.seq]
        assert {m.status for m in committed} == {MutationStatus.DONE}
        assert len(committed) == 2 * latest.version
        again.mutations.rewind(RUN)
        assert again.mutations.since(RUN, latest.seq) == []
