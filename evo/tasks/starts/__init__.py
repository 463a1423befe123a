"""Starting kernels: plain, correct Triton modules that searches begin from."""
