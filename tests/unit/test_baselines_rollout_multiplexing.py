"""Rollout multiplexing: decode side by side, everything else alone."""

from plait.core.colocation import ColocationView, WorkerFacts
from plait.core.ids import RunId, WorkerId
from plait.core.substages import Kind, Substage
from plait.policies.baselines.rollout_multiplexing import RolloutMultiplexing

W = WorkerId("w")


def substage(
    run: str, kind: Kind, *, n_bytes: int = 0, least: int = 0, after: str = ""
) -> Substage:
    return Substage(
        key=f"{run}/{kind}",
        run_id=RunId(run),
        worker=W,
        kind=kind,
        work_s=1.0,
        memory_bytes=n_bytes,
        least_bytes=least,
        after=(after,) if after else (),
    )


def shares(*substages: Substage, running: tuple[str, ...] = ()) -> dict[str, tuple[float, int]]:
    view = ColocationView(
        workers=(WorkerFacts(worker_id=W, memory_bytes=100),),
        substages=substages,
        running=running,
    )
    plan, _ = RolloutMultiplexing().decide(view, {}, 0.0)
    return {share.key: (share.compute, share.memory_bytes) for share in plan.shares}


def test_two_rollouts_share_evenly() -> None:
    a, b = (substage(run, Kind.DECODE, n_bytes=80, least=10) for run in "ab")
    assert shares(a, b) == {a.key: (0.5, 50), b.key: (0.5, 50)}


def test_training_waits_for_running_rollouts_and_no_new_one_begins() -> None:
    a, b = substage("a", Kind.DECODE), substage("b", Kind.TRAIN)
    c = substage("c", Kind.DECODE)
    assert set(shares(a, b, c, running=(a.key,))) == {a.key}


def test_training_goes_before_new_rollouts_and_alone() -> None:
    a, b, c = substage("a", Kind.DECODE), substage("b", Kind.TRAIN), substage("c", Kind.TRAIN)
    assert shares(a, b, c) == {b.key: (1.0, 0)}
    assert shares(a, b, c, running=(c.key,)) == {c.key: (1.0, 0)}


def test_tools_need_no_worker_and_what_follows_waits() -> None:
    tool, later = substage("a", Kind.TOOL), substage("a", Kind.DECODE, after="a/tool")
    assert set(shares(tool, later)) == {tool.key}


def test_a_rollout_without_room_for_its_least_waits_with_a_reason() -> None:
    a, b = (substage(run, Kind.DECODE, n_bytes=90, least=60) for run in "ab")
    view = ColocationView(
        workers=(WorkerFacts(worker_id=W, memory_bytes=100),),
        substages=(a, b),
        running=(a.key,),
        held_bytes={a.key: 60},
    )
    plan, _ = RolloutMultiplexing().decide(view, {}, 0.0)
    assert [share.key for share in plan.shares] == [a.key]
    assert [(wait.run_id, wait.reason) for wait in plan.waits] == [("b", "memory")]
