"""Language-model clients, one per file."""
