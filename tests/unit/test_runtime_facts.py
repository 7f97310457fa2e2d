from collections.abc import Iterator

from plait.core.ids import RunId, TenantId
from plait.core.plan import LazyWaits, Wait
from plait.core.runs import RunSpec
from plait.runtime.facts import RunFacts
from plait.runtime.notice import Notice


class Counted(LazyWaits):
    """Two waits, and how many have been worded."""

    def __init__(self, detail: str) -> None:
        self.detail, self.worded = detail, 0

    def __len__(self) -> int:
        return 2

    def reasons(self) -> Iterator[tuple[RunId, str]]:
        return iter([(RunId("a"), "trainer_busy"), (RunId("b"), "trainer_busy")])

    def word(self, place: int) -> Wait:
        self.worded += 1
        return Wait(run_id=RunId("ab"[place]), reason="trainer_busy", detail=self.detail)


class Events:
    def __init__(self) -> None:
        self.seen: list[tuple[str, object]] = []
        self.kept = True

    def keeps(self, kind: str) -> bool:
        return self.kept

    def event(self, run_id: RunId | None, kind: str, **detail: object) -> None:
        self.seen.append((kind, detail["detail"]))


def test_a_wait_is_worded_when_its_reason_changes_or_its_owner_looks() -> None:
    spec = RunSpec(run_id=RunId("b"), tenant_id=TenantId("t"), base_model="m")
    facts, events, notice = RunFacts(spec=spec, order=0), Events(), Notice()
    assert facts.wait is None
    first, second = Counted("behind two"), Counted("behind one")
    assert dict(notice.put_up(first, ())) == {"a": "trainer_busy", "b": "trainer_busy"}
    facts.waits_for(notice, "trainer_busy", events)
    assert first.worded == 1
    assert dict(notice.put_up(second, ())) == {"a": "trainer_busy", "b": "trainer_busy"}
    facts.waits_for(notice, "trainer_busy", events)
    assert second.worded == 0
    assert events.seen == [("wait", "behind two")]
    assert facts.wait == Wait(run_id=RunId("b"), reason="trainer_busy", detail="behind one")
    facts.told = None
    assert facts.wait is None
    facts.waits_for(notice, "trainer_busy", events)
    assert [detail for _, detail in events.seen] == ["behind two", "behind one"]


def test_what_nobody_writes_down_is_not_worded() -> None:
    spec = RunSpec(run_id=RunId("b"), tenant_id=TenantId("t"), base_model="m")
    facts, events, notice = RunFacts(spec=spec, order=0), Events(), Notice()
    events.kept = False
    waits = Counted("behind two")
    list(notice.put_up(waits, ()))
    facts.waits_for(notice, "trainer_busy", events)
    assert (waits.worded, events.seen) == (0, [])
    assert facts.wait == Wait(run_id=RunId("b"), reason="trainer_busy", detail="behind two")
