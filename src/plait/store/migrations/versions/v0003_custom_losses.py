"""Custom losses of client sessions."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Build the table. Written out, not taken from ``schema``: a revision never changes."""
    op.create_table(
        "custom_losses",
        sa.Column("session_id", sa.String, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("tenant_id", sa.String, nullable=False),
        sa.Column("loss", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("session_id", "seq", name="pk_custom_losses"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.session_id"], name="fk_custom_losses_session_id"
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.tenant_id"], name="fk_custom_losses_tenant_id"
        ),
    )
