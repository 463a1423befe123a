"""Compiler seeds: what torch.compile makes of a task's reference, as starting kernels."""
