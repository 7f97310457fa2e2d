"""Schema: the tables, in portable SQLAlchemy Core.

Invariants that the database itself keeps: ``(run_id, seq)`` names one mutation, ``(run_id,
version)`` one version, and nothing belongs to a run that does not exist. Times are seconds since
the epoch, given by the caller. What the migrations build must equal this module (tested).
"""

import sqlalchemy as sa

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
    sa.Column("tenant_id", sa.String, primary_key=True),
    sa.Column("created_at", sa.Float, nullable=False),
)

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("run_id", sa.String, primary_key=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.tenant_id"), nullable=False, index=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("spec", sa.JSON, nullable=False),
    sa.Column("status", sa.String, nullable=False),
    sa.Column("reason", sa.String, nullable=False),
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
    sa.Column("path", sa.String, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
)

mutations = sa.Table(
    "mutations",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.run_id"), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("status", sa.String, nullable=False),
    sa.Column("result", sa.JSON, nullable=False),
    sa.Column("error", sa.String, nullable=False),
    sa.Column("accepted_at", sa.Float, nullable=False),
    sa.Column("finished_at", sa.Float, nullable=True),
)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.run_id"), primary_key=True),
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("path", sa.String, nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("pinned", sa.Boolean, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
)

usage = sa.Table(
    "usage",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.run_id"), primary_key=True),
    sa.Column("kind", sa.String, primary_key=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.tenant_id"), nullable=False, index=True),
    sa.Column("device_s", sa.Float, nullable=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),
)
