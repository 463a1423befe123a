"""What alembic runs: the revisions, on the connection and in the transaction it was given."""

from __future__ import annotations

from alembic import context

from population_store.schema import VERSION_TABLE, metadata

connection = context.config.attributes["connection"]
# Batch mode rebuilds a table where SQLite cannot alter it.
context.configure(connection=connection, target_metadata=metadata, version_table=VERSION_TABLE, render_as_batch=True)
context.run_migrations()
