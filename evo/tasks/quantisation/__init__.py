"""Tasks that pack weights and activations into few bits, or unpack them."""
