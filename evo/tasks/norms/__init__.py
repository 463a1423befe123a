"""Tasks of normalisation layers, forward and backward."""
