"""A store of revision 0001, with data, becomes the newest one: whole, or stays what it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command, op
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext

from plait.core.errors import StoreError
from plait.core.ids import LOCAL_TENANT, RunId, TenantId
from plait.store.database import MIGRATIONS, Database
from plait.store.rows import MutationStatus, RunStatus
from plait.store.schema import metadata
from plait.store.store import Store

RUN, DAY_S = RunId("one"), 86400.0

OLD_ROWS = f"""
INSERT INTO tenants VALUES ('local', 1.0);
INSERT INTO tenants VALUES ('ann', 2.0);
INSERT INTO runs VALUES ('one', 'local', 'one', '{{"rank": 8}}', 'active', '', '{{"step": 2}}',
    1.0, {3 * DAY_S});
INSERT INTO runs VALUES ('two', 'ann', 'two', '{{}}', 'failed', 'no signal', '{{}}', 1.0, 5.0);
INSERT INTO versions VALUES ('one', 0, 1, 'jobs/one/versions/000000', 1.0);
INSERT INTO versions VALUES ('one', 1, 3, 'jobs/one/versions/000001', 2.0);
INSERT INTO mutations VALUES ('one', 1, 'Create', 'done', '{{"version": 0}}', '', 1.0, 1.5);
INSERT INTO mutations VALUES ('one', 2, 'ForwardBackward', 'failed', '{{}}', 'nan', 1.0, 1.5);
INSERT INTO mutations VALUES ('one', 3, 'OptimStep', 'done', '{{"version": 1}}', '', 2.0, 2.5);
INSERT INTO mutations VALUES ('one', 4, 'ForwardBackward', 'accepted', '{{}}', '', 3.0, NULL);
INSERT INTO checkpoints VALUES ('one', 'step-1', 1, 'jobs/one/versions/000001', 'training',
    true, 2.0);
INSERT INTO "usage" VALUES ('one', 'step', 'local', 1.5, 700);
INSERT INTO "usage" VALUES ('two', 'step', 'ann', 0.5, 30)
"""


@contextmanager
def raw(url: str) -> Iterator[sa.Connection]:
    """A connection without what plait makes of one."""
    engine = sa.create_engine(url)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


@pytest.fixture
def old(url: str) -> str:
    """A store as 0001 left it."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with raw(url) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        for statement in OLD_ROWS.split(";"):
            connection.execute(sa.text(statement.replace(":", "\\:")))
    return url


def revision(url: str) -> str:
    with raw(url) as connection:
        found = connection.execute(sa.text("SELECT version_num FROM alembic_version"))
        return str(found.scalar_one())


def test_everything_is_there_after_the_upgrade(old: str) -> None:
    with Store(old) as store:
        run = store.runs.get(RUN)
        assert (run.progress, run.spec, run.updated_at) == ({"step": 2}, {"rank": 8}, 3 * DAY_S)
        assert [v.version for v in store.mutations.versions(RUN)] == [0, 1]
        assert [m.status for m in store.mutations.since(RUN, 0)] == [
            MutationStatus.DONE,
            MutationStatus.FAILED,
            MutationStatus.DONE,
            MutationStatus.ACCEPTED,
        ]
        assert store.runs.get(RunId("two")).status is RunStatus.FAILED
        tenant = store.tenants.get(LOCAL_TENANT)
        assert (tenant.weight, tenant.priority, tenant.limits) == (1.0, 0, {})
        assert not tenant.disabled
        checkpoint = store.checkpoints.list(RUN)[0]
        assert (checkpoint.name, checkpoint.pinned, checkpoint.automatic) == ("step-1", True, True)
        assert (checkpoint.has_optimizer, checkpoint.size_bytes) == (True, 0)
        assert (checkpoint.expires_at, checkpoint.user_metadata) == (None, {})
        days = store.usage.days(LOCAL_TENANT)
        assert [(u.day, u.kind, u.device_s, u.tokens) for u in days] == [
            ("1970-01-04", "step", 1.5, 700)
        ]
        assert [u.tokens for u in store.usage.of_tenant(TenantId("ann"))] == [30]


def test_an_upgraded_store_goes_on(old: str) -> None:
    with Store(old) as store:
        store.mutations.accept(RUN, 5, "OptimStep", now=4.0)
        store.mutations.commit_version(RUN, 2, 5, "v2", now=4.0)
        store.sessions.open("s", tenant_id=LOCAL_TENANT, told={}, now=4.0)
        assert store.requests.accept(
            "s:train:0", 1, tenant_id=LOCAL_TENANT, session_id="s", kind="k", body=b"", now=4.0
        ).new
        tenant = store.tenants.ensure(LOCAL_TENANT, now=9.0)
        assert tenant.created_at == 1.0


def test_an_upgraded_store_is_what_a_new_one_is(old: str) -> None:
    database = Database(old)
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    database.close()


def test_an_upgrade_that_breaks_off_leaves_the_old_store(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = op.create_index

    def fail_at_the_last(name: str, *args: Any, **kwargs: Any) -> None:
        if name == "ix_events_job_id":
            raise ZeroDivisionError
        create(name, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(op, "create_index", fail_at_the_last)
        with pytest.raises(ZeroDivisionError):
            Store(old)
    assert revision(old) == "0001"
    with raw(old) as connection:
        assert connection.execute(sa.text('SELECT count(*) FROM "usage"')).scalar_one() == 2
    with Store(old) as store:
        assert len(store.usage.days(LOCAL_TENANT)) == 1


def test_a_newer_store_is_refused(url: str) -> None:
    Store(url).close()
    with raw(url) as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match="another version of plait"):
        Store(url)
    assert revision(url) == "9999"
