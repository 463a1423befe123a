"""What each command of `triton-evolve` does; `evo.main` parses the arguments."""
