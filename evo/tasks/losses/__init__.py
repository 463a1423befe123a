"""Tasks of training losses over a vocabulary."""
