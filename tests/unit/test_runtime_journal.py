"""Journal: a full disk is told once and never raised into the loop that writes."""

from pathlib import Path

from plait.core.errors import StoreError
from plait.core.ids import RunId, WorkerId
from plait.obs.jsonl import read_jsonl
from plait.obs.recorder import Recorder
from plait.runtime.journal import LaunchJournal
from plait.runtime.messages import Span


def test_the_first_refused_write_ends_the_launch_in_order_and_only_once(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, origin_s=0.0)
    told: list[StoreError] = []
    journal = LaunchJournal(
        recorder, policy="p", n_params=1, now=lambda: 1.0, on_broken=told.append
    )
    journal.event(RunId("a"), "stage", stage="train")
    assert told == []
    recorder.close()  # from here on no write succeeds, as on a full disk
    full = StoreError("cannot write: free some space, then resume")

    def refuse(*args: object, **kwargs: object) -> None:
        raise full

    recorder.span = recorder.event = recorder.decision = refuse  # type: ignore[method-assign]
    journal.event(RunId("a"), "stage", stage="rollout")
    journal.decision("admission", None, {}, None)
    journal.span(
        WorkerId("w"),
        Span(kind="train", t0=0, t1=1, threads=1, tokens=1, steps=1, tokens_by_run={}),
    )
    assert told == [full]
    assert journal.broken is full


def test_a_launch_without_an_end_keeps_a_few_events_and_no_steps(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, origin_s=0.0, sparse=True)
    journal = LaunchJournal(recorder, policy="p", n_params=1, now=lambda: 1.0, on_broken=print)
    for kind in ("added", "stage", "wait", "worker_lost"):
        journal.event(RunId("a"), kind)
    journal.decision("admission", None, {}, None)
    span = Span(kind="train", t0=0, t1=1, threads=1, tokens=1, steps=1, tokens_by_run={})
    journal.span(WorkerId("w"), span)
    recorder.outside("reward", run=RunId("a"), key="k", t0=0.0, t1=1.0)
    recorder.job("a", RunId("a")).event("waits", now=1.0)
    recorder.close()
    kinds = [row["kind"] for row in read_jsonl(tmp_path / "events.jsonl")]
    assert kinds == ["added", "worker_lost"]
    assert not (tmp_path / "workers.jsonl").read_bytes()
    assert not (tmp_path / "decisions.jsonl").read_bytes()
