"""Alembic's entry: migrate on the connection (and inside the transaction) that the store hands
over."""

from alembic import context

from plait.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
context.run_migrations()
