"""Stages and waits from events."""

from typing import Any

from plait.obs.stages import Held, stages, wait_seconds, waits


def event(t: float, kind: str, **detail: Any) -> dict[str, Any]:
    return {"t": t, "kind": kind, **detail}


EVENTS = [
    event(0, "added", job="a"),
    event(1, "stage", stage="wait_rollout"),
    event(1, "wait", reason="kv_budget"),
    event(3, "wait", reason="turn"),
    event(4, "stage", stage="rollout"),
    event(6, "wait", reason="paused"),
    event(7, "wait", reason=""),
    event(9, "stage", stage="train"),
    event(10, "finished"),
    event(12, "wait", reason="never ends"),
]


def test_a_stage_holds_until_the_next_or_the_end() -> None:
    assert stages(EVENTS, 20) == [
        Held(what="wait_rollout", t0=1, t1=4),
        Held(what="rollout", t0=4, t1=9),
        Held(what="train", t0=9, t1=10),
    ]


def test_a_wait_holds_until_another_wait_or_a_stage() -> None:
    assert waits(EVENTS[:-1], 20) == [
        Held(what="kv_budget", t0=1, t1=3),
        Held(what="turn", t0=3, t1=4),
        Held(what="paused", t0=6, t1=7),
    ]


def test_what_is_still_going_on_is_cut_at_the_end() -> None:
    assert stages(EVENTS[:2], 5) == [Held(what="wait_rollout", t0=1, t1=5)]
    assert wait_seconds(EVENTS, 20) == {"never ends": 8, "kv_budget": 2, "turn": 1, "paused": 1}


def test_a_resume_ends_what_the_killed_process_was_doing() -> None:
    again = [event(1, "stage", stage="rollout"), event(2, "wait", reason="turn"), event(3, "added")]
    assert stages(again, 9) == [Held(what="rollout", t0=1, t1=3)]
    assert waits(again, 9) == [Held(what="turn", t0=2, t1=3)]
