"""Schema: the tables, in portable SQLAlchemy Core.

Invariants that the database itself keeps: ``(run_id, seq)`` names one mutation, ``(run_id,
version)`` one version, ``(owner, seq)`` one request, ``(session_id, seq)`` one custom loss; nothing
belongs to a run, session or tenant that does not exist. Times are seconds since the epoch, given by
the caller. What the migrations build must equal this module (tested).

Bodies of requests are a table of their own: SQLite writes a whole row anew when one column
changes, and a request's end must not write its body a second time.
"""

import sqlalchemy as sa

from plait.store.text import Text

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)

tenants = sa.Table(
    "tenants",
    metadata,
    sa.Column("tenant_id", Text, primary_key=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("name", Text, nullable=False),
    sa.Column("weight", sa.Float, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("limits", sa.JSON, nullable=False),
    sa.Column("disabled", sa.Boolean, nullable=False),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("key_id", Text, primary_key=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.tenant_id"), nullable=False, index=True),
    sa.Column("sha256", Text, nullable=False),
    sa.Column("prefix", Text, nullable=False),
    sa.Column("label", Text, nullable=False),
    sa.Column("admin", sa.Boolean, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("revoked_at", sa.Float, nullable=True),
    sa.Index("ix_api_keys_sha256", "sha256", unique=True),
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("session_id", Text, primary_key=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.tenant_id"), nullable=False, index=True),
    sa.Column("told", sa.JSON, nullable=False),
    sa.Column("project_id", Text, nullable=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("ended_at", sa.Float, nullable=True),
    sa.Column("reason", Text, nullable=False),
    sa.Column("detail", Text, nullable=False),
)

_UNENDED = sa.text("finished_at IS NULL")
_ANSWERED = sa.text("answer IS NOT NULL")

requests = sa.Table(
    "requests",
    metadata,
    sa.Column("owner", Text, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("tenant_id", sa.ForeignKey("tenants.tenant_id"), nullable=False),
    sa.Column("session_id", sa.ForeignKey("sessions.session_id"), nullable=False, index=True),
    sa.Column("kind", Text, nullable=False),
    sa.Column("status", Text, nullable=False),
    sa.Column("category", Text, nullable=False),
    sa.Column("error", Text, nullable=False),
    sa.Column("accepted_at", sa.Float, nullable=False),
    sa.Column("finished_at", sa.Float, nullable=True),
    sa.Column("answer", sa.LargeBinary, nullable=True),
    sa.Index(
        "ix_requests_unended",
        "owner",
        "seq",
        sqlite_where=_UNENDED,
        postgresql_where=_UNENDED,
    ),
    sa.Index(
        "ix_requests_answered",
        "finished_at",
        sqlite_where=_ANSWERED,
        postgresql_where=_ANSWERED,
    ),
)

request_bodies = sa.Table(
    "request_bodies",
    metadata,
    sa.Column("owner", Text, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

custom_losses = sa.Table(
    "custom_losses",
    metadata,
    sa.Column("session_id", sa.ForeignKey("sessions.session_id"), primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("tenant_id", sa.ForeignKey("tenants.tenant_id"), nullable=False),
    sa.Column("loss", sa.LargeBinary, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
)

samplers = sa.Table(
    "samplers",
    metadata,
    sa.Column("sampler_id", Text, primary_key=True),
    sa.Column("session_id", sa.ForeignKey("sessions.session_id"), nullable=False, index=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.tenant_id"), nullable=False),
    sa.Column("base_model", Text, nullable=False),
    sa.Column("model_path", Text, nullable=True),
    sa.Column("run_id", sa.ForeignKey("runs.run_id"), nullable=True, index=True),
    sa.Column("version", sa.Integer, nullable=True),
    sa.Column("path", Text, nullable=False),
    sa.Column("inflight", sa.Boolean, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("freed_at", sa.Float, nullable=True),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("job_id", Text, primary_key=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.tenant_id"), nullable=False, index=True),
    sa.Column("name", Text, nullable=False),
    sa.Column("spec", sa.JSON, nullable=False),
    sa.Column("status", Text, nullable=False),
    sa.Column("reason", Text, nullable=False),
    sa.Column("run_id", Text, nullable=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("updated_at", sa.Float, nullable=False),
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("event_id", sa.Integer, primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("kind", Text, nullable=False),
    sa.Column("tenant_id", Text, nullable=True, index=True),
    sa.Column("run_id", Text, nullable=True, index=True),
    sa.Column("job_id", Text, nullable=True, index=True),
    sa.Column("detail", sa.JSON, nullable=False),
)

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("run_id", Text, primary_key=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.tenant_id"), nullable=False, index=True),
    sa.Column("name", Text, nullable=False),
    sa.Column("spec", sa.JSON, nullable=False),
    sa.Column("status", Text, nullable=False),
    sa.Column("reason", Text, nullable=False),
    sa.Column("progress", sa.JSON, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("updated_at", sa.Float, nullable=False),
)

versions = sa.Table(
    "versions",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.run_id"), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("path", Text, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
)

mutations = sa.Table(
    "mutations",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.run_id"), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", Text, nullable=False),
    sa.Column("status", Text, nullable=False),
    sa.Column("result", sa.JSON, nullable=False),
    sa.Column("error", Text, nullable=False),
    sa.Column("accepted_at", sa.Float, nullable=False),
    sa.Column("finished_at", sa.Float, nullable=True),
)

_EXPIRING = sa.text("expires_at IS NOT NULL")

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.run_id"), primary_key=True),
    sa.Column("name", Text, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("path", Text, nullable=False),
    sa.Column("kind", Text, nullable=False),
    sa.Column("pinned", sa.Boolean, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("automatic", sa.Boolean, nullable=False),
    sa.Column("has_optimizer", sa.Boolean, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("score", sa.Float, nullable=True),
    sa.Column("public", sa.Boolean, nullable=False),
    sa.Column("expires_at", sa.Float, nullable=True),
    sa.Column("user_metadata", sa.JSON, nullable=False),
    sa.Index(
        "ix_checkpoints_expires_at",
        "expires_at",
        sqlite_where=_EXPIRING,
        postgresql_where=_EXPIRING,
    ),
)

usage_days = sa.Table(
    "usage_days",
    metadata,
    sa.Column("day", Text, primary_key=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.tenant_id"), primary_key=True),
    sa.Column("run_id", Text, primary_key=True),
    sa.Column("kind", Text, primary_key=True),
    sa.Column("n", sa.BigInteger, nullable=False),
    sa.Column("device_s", sa.Float, nullable=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),
    sa.Index("ix_usage_days_tenant_id", "tenant_id"),
    sa.Index("ix_usage_days_run_id", "run_id"),
)
