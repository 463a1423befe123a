"""Tasks of convolution and pooling."""
