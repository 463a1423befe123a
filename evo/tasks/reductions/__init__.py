"""Tasks that reduce or select within rows."""
