"""Where everything evaluated is kept: the store contract in `base`, the SQL store in `sql`, schema migrations in `migrations`."""
