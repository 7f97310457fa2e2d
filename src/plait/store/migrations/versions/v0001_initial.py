"""Initial schema: tenants, runs, versions, mutations, checkpoints, usage."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Build the tables. Written out, not taken from ``schema``: a revision never changes."""
    op.create_table(
        "tenants",
        sa.Column("tenant_id", sa.String, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_tenants"),
    )
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("tenant_id", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("progress", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_runs"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"], name="fk_runs_tenant_id"),
    )
    op.create_index("ix_runs_tenant_id", "runs", ["tenant_id"])
    op.create_table(
        "versions",
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("path", sa.String, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "version", name="pk_versions"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_versions_run_id"),
    )
    op.create_table(
        "mutations",
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("result", sa.JSON, nullable=False),
        sa.Column("error", sa.String, nullable=False),
        sa.Column("accepted_at", sa.Float, nullable=False),
        sa.Column("finished_at", sa.Float, nullable=True),
        sa.PrimaryKeyConstraint("run_id", "seq", name="pk_mutations"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_mutations_run_id"),
    )
    op.create_table(
        "checkpoints",
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("path", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("pinned", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "name", name="pk_checkpoints"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_checkpoints_run_id"),
    )
    op.create_table(
        "usage",
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("tenant_id", sa.String, nullable=False),
        sa.Column("device_s", sa.Float, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "kind", name="pk_usage"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_usage_run_id"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"], name="fk_usage_tenant_id"),
    )
    op.create_index("ix_usage_tenant_id", "usage", ["tenant_id"])
