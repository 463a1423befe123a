"""What `triton-evolve init` does: from a PyTorch function or module and an example of its inputs to a task file."""
