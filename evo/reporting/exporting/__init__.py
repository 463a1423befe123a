"""The parts of an export: which kernels, where they come from, what they launch, and the texts that are written."""
