"""One file per schema revision, in the order of `population_store.schema.REVISIONS`; a released one never changes."""
