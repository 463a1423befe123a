"""Tasks of optimizer steps, which update their arguments in place."""
