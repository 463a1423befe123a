"""Tasks of attention beside the plain forward pass."""
