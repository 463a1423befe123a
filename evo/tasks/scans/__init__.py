"""Tasks whose elements depend on those before them."""
