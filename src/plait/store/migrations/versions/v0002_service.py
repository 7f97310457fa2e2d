"""The service: tenants' shares and limits, keys, client sessions, requests, samplers, jobs, events;
checkpoints that have owners' wishes; usage by day."""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Extend and build. Written out, not taken from ``schema``: a revision never changes."""
    _extend_tenants()
    _extend_checkpoints()
    _usage_by_day()
    _keys_and_sessions()
    _requests()
    _samplers()
    _jobs_and_events()


def _extend_tenants() -> None:
    for column in (
        sa.Column("name", sa.String, nullable=False, server_default=""),
        sa.Column("weight", sa.Float, nullable=False, server_default="1.0"),
        sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
        sa.Column("limits", sa.JSON, nullable=False, server_default="{}"),
        sa.Column("disabled", sa.Boolean, nullable=False, server_default=sa.false()),
    ):
        op.add_column("tenants", column)


def _extend_checkpoints() -> None:
    """All that there are were made by the schedule, of training states."""
    for column in (
        sa.Column("automatic", sa.Boolean, nullable=False, server_default=sa.true()),
        sa.Column("has_optimizer", sa.Boolean, nullable=False, server_default=sa.true()),
        sa.Column("size_bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("score", sa.Float, nullable=True),
        sa.Column("public", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("expires_at", sa.Float, nullable=True),
        sa.Column("user_metadata", sa.JSON, nullable=False, server_default="{}"),
    ):
        op.add_column("checkpoints", column)
    expiring = sa.text("expires_at IS NOT NULL")
    op.create_index(
        "ix_checkpoints_expires_at",
        "checkpoints",
        ["expires_at"],
        sqlite_where=expiring,
        postgresql_where=expiring,
    )


def _usage_by_day() -> None:
    """What was summed per run goes to the day on which the run was last written to."""
    days = op.create_table(
        "usage_days",
        sa.Column("day", sa.String, nullable=False),
        sa.Column("tenant_id", sa.String, nullable=False),
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("n", sa.BigInteger, nullable=False),
        sa.Column("device_s", sa.Float, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("day", "tenant_id", "run_id", "kind", name="pk_usage_days"),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.tenant_id"], name="fk_usage_days_tenant_id"
        ),
    )
    assert days is not None
    old = op.get_bind().execute(
        sa.text(
            'SELECT u.run_id, u.kind, u.tenant_id, u.device_s, u.tokens, r.updated_at FROM "usage" '
            "u JOIN runs r ON r.run_id = u.run_id"
        )
    )
    rows = [
        {
            "day": datetime.fromtimestamp(row.updated_at, UTC).date().isoformat(),
            "tenant_id": row.tenant_id,
            "run_id": row.run_id,
            "kind": row.kind,
            "n": 0,
            "device_s": row.device_s,
            "tokens": row.tokens,
        }
        for row in old
    ]
    if rows:
        op.bulk_insert(days, rows)
    op.create_index("ix_usage_days_tenant_id", "usage_days", ["tenant_id"])
    op.create_index("ix_usage_days_run_id", "usage_days", ["run_id"])
    op.drop_table("usage")


def _keys_and_sessions() -> None:
    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.String, nullable=False),
        sa.Column("tenant_id", sa.String, nullable=False),
        sa.Column("sha256", sa.String, nullable=False),
        sa.Column("prefix", sa.String, nullable=False),
        sa.Column("label", sa.String, nullable=False),
        sa.Column("admin", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("revoked_at", sa.Float, nullable=True),
        sa.PrimaryKeyConstraint("key_id", name="pk_api_keys"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"], name="fk_api_keys_tenant_id"),
    )
    op.create_index("ix_api_keys_tenant_id", "api_keys", ["tenant_id"])
    op.create_index("ix_api_keys_sha256", "api_keys", ["sha256"], unique=True)
    op.create_table(
        "sessions",
        sa.Column("session_id", sa.String, nullable=False),
        sa.Column("tenant_id", sa.String, nullable=False),
        sa.Column("told", sa.JSON, nullable=False),
        sa.Column("project_id", sa.String, nullable=True),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float, nullable=True),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("detail", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("session_id", name="pk_sessions"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"], name="fk_sessions_tenant_id"),
    )
    op.create_index("ix_sessions_tenant_id", "sessions", ["tenant_id"])


def _requests() -> None:
    op.create_table(
        "requests",
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("tenant_id", sa.String, nullable=False),
        sa.Column("session_id", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("category", sa.String, nullable=False),
        sa.Column("error", sa.String, nullable=False),
        sa.Column("accepted_at", sa.Float, nullable=False),
        sa.Column("finished_at", sa.Float, nullable=True),
        sa.Column("answer", sa.LargeBinary, nullable=True),
        sa.PrimaryKeyConstraint("owner", "seq", name="pk_requests"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"], name="fk_requests_tenant_id"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.session_id"], name="fk_requests_session_id"
        ),
    )
    op.create_index("ix_requests_session_id", "requests", ["session_id"])
    unended = sa.text("finished_at IS NULL")
    op.create_index(
        "ix_requests_unended",
        "requests",
        ["owner", "seq"],
        sqlite_where=unended,
        postgresql_where=unended,
    )
    answered = sa.text("answer IS NOT NULL")
    op.create_index(
        "ix_requests_answered",
        "requests",
        ["finished_at"],
        sqlite_where=answered,
        postgresql_where=answered,
    )
    op.create_table(
        "request_bodies",
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("owner", "seq", name="pk_request_bodies"),
    )


def _samplers() -> None:
    op.create_table(
        "samplers",
        sa.Column("sampler_id", sa.String, nullable=False),
        sa.Column("session_id", sa.String, nullable=False),
        sa.Column("tenant_id", sa.String, nullable=False),
        sa.Column("base_model", sa.String, nullable=False),
        sa.Column("model_path", sa.String, nullable=True),
        sa.Column("run_id", sa.String, nullable=True),
        sa.Column("version", sa.Integer, nullable=True),
        sa.Column("path", sa.String, nullable=False),
        sa.Column("inflight", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("freed_at", sa.Float, nullable=True),
        sa.PrimaryKeyConstraint("sampler_id", name="pk_samplers"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.session_id"], name="fk_samplers_session_id"
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"], name="fk_samplers_tenant_id"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_samplers_run_id"),
    )
    op.create_index("ix_samplers_session_id", "samplers", ["session_id"])
    op.create_index("ix_samplers_run_id", "samplers", ["run_id"])


def _jobs_and_events() -> None:
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("tenant_id", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("run_id", sa.String, nullable=True),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("job_id", name="pk_jobs"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"], name="fk_jobs_tenant_id"),
    )
    op.create_index("ix_jobs_tenant_id", "jobs", ["tenant_id"])
    op.create_table(
        "events",
        sa.Column("event_id", sa.Integer, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("tenant_id", sa.String, nullable=True),
        sa.Column("run_id", sa.String, nullable=True),
        sa.Column("job_id", sa.String, nullable=True),
        sa.Column("detail", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("event_id", name="pk_events"),
    )
    for column in ("tenant_id", "run_id", "job_id"):
        op.create_index(f"ix_events_{column}", "events", [column])
