"""Tasks of matrix products in several formats and shapes."""
