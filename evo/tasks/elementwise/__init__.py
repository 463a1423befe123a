"""Tasks that look at each element alone, or at few neighbours of it."""
