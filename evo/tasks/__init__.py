"""Kernel tasks: the contract in `base`, one task per file, starting kernels in `starts/`."""
