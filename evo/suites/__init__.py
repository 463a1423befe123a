"""Public suites of kernels: reads checkouts of theirs as tasks, counts what came of them as the field counts, and writes the tables."""
