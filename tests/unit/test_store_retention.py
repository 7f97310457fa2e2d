"""Which checkpoints are surplus; and that the schedule's removal takes nothing else."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import ConfigError
from plait.core.ids import LOCAL_TENANT, RunId
from plait.runtime.retention import Retention
from plait.store.files import VersionDirs, VersionWriter
from plait.store.retention import Rule, surplus
from plait.store.rows import CheckpointRow
from plait.store.store import Store

RUN = RunId("r")


def row(
    version: int,
    *,
    score: float | None = None,
    pinned: bool = False,
    expires_at: float | None = None,
) -> CheckpointRow:
    return CheckpointRow(
        run_id=RUN,
        name=f"step-{version}",
        version=version,
        path=f"v/{version}",
        kind="training",
        pinned=pinned,
        created_at=float(version),
        automatic=True,
        has_optimizer=True,
        size_bytes=1,
        score=score,
        public=False,
        expires_at=expires_at,
        user_metadata={},
    )


def left(rows: list[CheckpointRow], rule: Rule, now: float = 0.0) -> list[int]:
    gone = surplus(rows, rule, now=now)
    return [r.version for r in rows if r not in gone]


def test_the_newest_stay_in_whatever_order_they_come() -> None:
    assert left([row(3), row(1), row(2)], Rule(keep_last=2)) == [3, 2]
    assert left([row(3), row(1)], Rule(keep_last=0)) == []
    assert left([row(3), row(1)], Rule()) == [3, 1]


def test_the_best_stay_and_of_equal_ones_the_newer() -> None:
    rows = [row(1, score=0.9), row(2, score=0.1), row(3, score=0.9), row(4), row(5, score=0.2)]
    assert left(rows, Rule(keep_last=1, keep_best=1)) == [3, 5]
    assert left(rows, Rule(keep_last=1, keep_best=2)) == [1, 3, 5]
    assert left(rows, Rule(keep_last=0, keep_best=9)) == [1, 2, 3, 5], "4 has no score"


def test_a_pinned_one_stays_and_takes_nobodys_place() -> None:
    rows = [row(1, pinned=True, expires_at=1.0), row(2), row(3), row(4, pinned=True)]
    assert left(rows, Rule(keep_last=1), now=9.0) == [1, 3, 4]


def test_one_whose_time_is_over_goes_and_takes_nobodys_place() -> None:
    rows = [row(1), row(2, score=1.0), row(3, score=9.0, expires_at=5.0)]
    assert left(rows, Rule(keep_last=1, keep_best=1), now=4.9) == [3]
    assert left(rows, Rule(keep_last=1, keep_best=1), now=5.0) == [2]
    assert left(rows, Rule(), now=5.0) == [1, 2]


def test_a_rule_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="from 0 up"):
        Rule(keep_last=-1)


ROWS = st.lists(
    st.builds(
        row,
        st.integers(0, 30),
        score=st.none() | st.floats(0, 1),
        pinned=st.booleans(),
        expires_at=st.none() | st.floats(0, 10),
    ),
    unique_by=lambda r: r.version,
    max_size=12,
)


@given(rows=ROWS, last=st.integers(0, 5), best=st.integers(0, 5), now=st.floats(0, 10))
def test_bounds_hold_and_a_second_look_finds_nothing_more(
    rows: list[CheckpointRow], last: int, best: int, now: float
) -> None:
    rule = Rule(keep_last=last, keep_best=best)
    gone = surplus(rows, rule, now=now)
    kept = [r for r in rows if r not in gone]
    assert not any(r.pinned for r in gone)
    assert len([r for r in kept if not r.pinned]) <= last + best
    assert surplus(kept, rule, now=now) == []
    assert gone == sorted(gone, key=lambda r: r.version)


def commit(store: Store, dirs: VersionDirs, version: int, score: float) -> None:
    with VersionWriter(dirs.path(version)) as folder:
        (folder / "a").write_text("x")
    store.mutations.accept(RUN, version, "OptimStep", now=1.0)
    store.mutations.commit_version(
        RUN,
        version,
        version,
        f"versions/{version:06d}",
        progress={"step": version, "score": score},
        now=1.0,
    )


def test_the_schedule_keeps_its_best_and_leaves_users_checkpoints_alone(tmp_path: Path) -> None:
    dirs = VersionDirs(tmp_path / "versions")
    with Store.at(tmp_path / "s.db") as store:
        store.runs.create(RUN, tenant_id=LOCAL_TENANT, name="r", spec={}, now=1.0)
        retention = Retention(
            store,
            RUN,
            dirs.root,
            every=1,
            keep_last=1,
            keep_best=1,
            max_staleness=0,
            launch_dir=tmp_path,
        )
        for version, score in enumerate((0.1, 0.9, 0.3, 0.2, 0.4, 0.1, 0.2), start=1):
            commit(store, dirs, version, score)
            if version == 1:
                store.checkpoints.put(
                    RUN, "weights/mine", version=1, path="elsewhere", kind="training", now=1.0
                )
            if version == 3:
                store.checkpoints.put(
                    RUN, "weights/here", version=3, path="versions/000003", kind="x", now=1.0
                )
            retention.remove(retention.record(version, retention.note(version), now=1.0))
        names = [c.name for c in store.checkpoints.list(RUN)]
        assert names == ["weights/mine", "step-2", "weights/here", "step-7"]
        rows = [v.version for v in store.mutations.versions(RUN)]
        assert rows == dirs.versions() == [2, 3, 6, 7]
