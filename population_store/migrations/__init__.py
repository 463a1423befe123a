"""Alembic environment of the population store; run by `population_store.versioning`, never by hand."""
