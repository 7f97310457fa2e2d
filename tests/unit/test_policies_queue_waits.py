import pytest

from plait.core.ids import OpId, RunId
from plait.core.plan import DispatchPlan, Wait, reasons, unusual
from plait.core.view import WorkItem
from plait.obs.records import plain
from plait.policies.queue_waits import QueueWaits


def item(name: str, est_s: float = 1.5) -> WorkItem:
    return WorkItem(
        op_id=OpId(f"op-{name}"),
        run_id=RunId(name),
        kind="update",
        est_s=est_s,
        tokens=1,
        waiting_since_s=0.0,
    )


HELD = Wait(run_id=RunId("z"), reason="paused", detail="why")


def queue_waits(asked: list[str]) -> QueueWaits:
    def order():
        asked.append("order")
        return [item("a"), item("b"), item("c")]

    def note(run_id: RunId) -> str:
        asked.append(run_id)
        return f"note {run_id}"

    return QueueWaits(n=3, n_served=1, order=order, held=lambda: [HELD], note=note)


def test_nothing_is_ordered_or_worded_before_somebody_asks() -> None:
    asked: list[str] = []
    told = queue_waits(asked)
    assert len(told) == 3
    assert unusual(told) == ("trainer_busy", {"z": "paused"})
    assert asked == []
    assert list(reasons(told)) == [("b", "trainer_busy"), ("c", "trainer_busy"), ("z", "paused")]
    assert asked == ["order"]
    assert told[1].detail == "update stands behind b, about 3.0 s of work; note c"
    assert asked == ["order", "c"]


def test_they_are_what_a_tuple_of_them_is() -> None:
    told = queue_waits([])
    whole = tuple(told)
    assert told == whole
    assert whole == told
    assert told != whole[:2]
    assert hash(told) == hash(whole)
    assert [wait.position for wait in told] == [1, 2, 0]
    assert told[1:] == whole[1:]
    assert told[-1] is HELD
    with pytest.raises(IndexError):
        told[3]
    plan = DispatchPlan(op_id=OpId("op-a"), waits=told)
    assert plan == DispatchPlan(op_id=OpId("op-a"), waits=whole)
    assert plain(plan)["waits"][2] == {
        "run_id": "z",
        "reason": "paused",
        "detail": "why",
        "position": 0,
    }
